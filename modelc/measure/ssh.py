"""A runner on another machine, which the installed `ssh` reaches: nothing is installed there.

One process of ssh does everything: the shell that it starts there takes the runner from its stdin, starts it, and
removes its folder when it ends; kernels and constants follow as the runner's own protocol has them (runner.c). Files
are named by their contents there, so that what several candidates share is sent once.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from modelc.errors import ConfigError, MeasureError, TargetError, Unmeasurable
from modelc.measure.job import Answer, Job
from modelc.measure.pool import end_of
from modelc.measure.runner import PATIENCE, Runner, program
from modelc.package import machine_of
from modelc.target import Target

WAITED = 300.0  # seconds for a board that has vanished
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 20.0  # seconds between two attempts: each time twice as many
ENDING = 5.0  # seconds that ssh may take to say why it ends
MOST_NOISE = 1 << 16  # bytes that a login may print before the runner speaks
KEPT_BYTES = 64 << 20  # of files that the board keeps beyond what a job needs: its folder may be memory

GONE = 255  # ssh's own exit code: no connection, or none any more
NO_FOLDER, NO_ROOM, NO_START = 73, 74, 126  # the shell's below, and a shell's where a program may not be started
HELLO, READY = "modelc-board", "modelc-ready"

# Nothing is put into this text: folder and size are read from stdin. `head` finds the runner's bytes alone there, as
# nothing follows them before READY is said.
SHELL = (
    "umask 077; IFS= read -r folder && read -r bytes || exit 1; "
    '[ -n "$folder" ] || folder=${TMPDIR:-/tmp}; '
    f'own=$(mktemp -d "$folder/modelc-XXXXXXXX") || exit {NO_FOLDER}; '
    'trap "rm -rf \\"\\$own\\"" EXIT; trap "exit 1" HUP INT TERM PIPE; '
    f'echo "{HELLO} $(uname -m)"; '
    f'head -c "$bytes" >"$own/runner" && chmod 700 "$own/runner" || exit {NO_ROOM}; '
    f'echo {READY}; "$own/runner" "$own"'
)
RUNS = {  # what programs a kernel of Linux runs, by what `uname -m` says
    "x86_64": ("x86_64",),
    "amd64": ("x86_64",),
    "aarch64": ("aarch64", "arm"),
    "arm64": ("aarch64", "arm"),
    "armv7l": ("arm",),
    "armv8l": ("arm",),
    "riscv64": ("riscv64",),
}
ADVICE = (  # what ssh says, and what to do about it
    ("Host key verification failed", "connect to it once by hand, so that its key is known"),
    ("Permission denied", "ssh has to get in without a password: by a key that the board knows (ssh-copy-id)"),
    ("Could not resolve", "see that its name is right"),
    ("", "see that it is on, and that ssh reaches it"),
)


REFUSALS = {  # by those codes
    NO_FOLDER: "no folder can be made",
    NO_ROOM: "the runner cannot be written",
    NO_START: "the runner cannot be started",
}
ELSEWHERE = "name a folder with room where programs may be started: ssh://USER@HOST:PORT/FOLDER"


class Vanished(MeasureError):
    """There is no connection to the board, or none any more."""


@dataclass(frozen=True)
class Board:
    """ssh://USER@HOST:PORT/FOLDER, of which all but HOST may be left out: FOLDER is that for temporary files."""

    host: str
    user: str = ""
    port: int | None = None
    folder: str = ""

    @staticmethod
    def parse(text: str) -> Board:
        """Raises ConfigError."""
        try:
            parts = urlsplit(text)
            user, host, port, folder = unquote(parts.username or ""), parts.hostname or "", parts.port, parts.path
            fine = parts.scheme == "ssh" and not (parts.password or parts.query or parts.fragment)
        except ValueError:
            fine, user, host, port, folder = False, "", "", None, ""
        folder = "" if folder == "/" else unquote(folder)
        fine = fine and bool(re.fullmatch(r"[\w.:%-]+", host)) and bool(re.fullmatch(r"[\w.@+-]*", user))
        if not fine or host.startswith("-") or user.startswith("-") or not folder.isprintable() or port == 0:
            raise ConfigError(
                f"the runner is {text[:200]!r}; expected ssh://USER@HOST:PORT/FOLDER, where USER, PORT and FOLDER may "
                "be left out; how to get in is ssh's to know (~/.ssh/config, a key)"
            )
        return Board(host, user, port, folder)

    def __str__(self) -> str:
        port = "" if self.port is None else f":{self.port}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"ssh://{f'{self.user}@' if self.user else ''}{host}{port}{self.folder}"

    @property
    def command(self) -> list[str]:
        """What starts the shell there, and ends soon after the connection does."""
        options = ("BatchMode=yes", "ConnectTimeout=10", "ServerAliveInterval=5", "ServerAliveCountMax=3")
        said = [word for option in (*options, "ClearAllForwardings=yes") for word in ("-o", option)]
        port = [] if self.port is None else ["-p", str(self.port)]
        place = f"{self.user}@{self.host}" if self.user else self.host
        return ["ssh", "-T", *said, *port, "--", place, f"exec sh -c '{SHELL}'"]


class SshRunner(Runner):
    """A runner on `board`. One that vanishes is waited for, which `say` is told, and what it had not done is done
    again. Raises Unmeasurable where it cannot be used, or does not come back, and TargetError where it is another
    machine."""

    def __init__(self, target: Target, folder: Path, board: Board, say: Callable[[str], None]) -> None:
        self._board, self._say = board, say
        self._there: dict[str, int] = {}  # bytes of the board's files, the least recently used first
        self._names: dict[str, str] = {}  # of files there, by those here
        self._leaving = threading.Event()
        super().__init__(target, folder)

    def run(self, name: str, job: Job) -> Answer:
        for last in (False, True):
            try:
                return self._run(name, job)
            except Vanished as error:
                self._come_back(error)
                if last:
                    raise MeasureError(f"{self._board} vanished twice while this was measured") from None
        raise AssertionError("it returns, or raises")

    def close(self) -> None:
        self._leaving.set()
        super().close()

    def _run(self, name: str, job: Job) -> Answer:
        """Raises Vanished; MeasureError where the runner alone has ended, in place of which there is a new one then."""
        try:
            self.put(name, job.renamed(self._sent(job.files)).text().encode())
        except Vanished:
            raise
        except MeasureError as error:
            raise Unmeasurable(f"{self._board} does not take what is measured: {error}; {ELSEWHERE}") from None
        try:
            answer = self._asked(f"job {name}", job.seconds + PATIENCE)
        except Vanished:
            raise
        except MeasureError:
            self._come_back(None)
            raise
        self.drop(name)
        return answer

    def _sent(self, files: Sequence[str]) -> dict[str, str]:
        """Sends what the board does not have of some files; their names there."""
        names: dict[str, str] = {}
        for file in files:
            data = b""
            if file not in self._names:
                data = (self.folder / file).read_bytes()
                self._names[file] = hashlib.sha256(data).hexdigest()[:32]
            names[file] = there = self._names[file]
            if there in self._there:
                self._there[there] = self._there.pop(there)
            else:
                data = data or (self.folder / file).read_bytes()
                self._make_room(len(data), names.values())
                self.put(there, data)
                self._there[there] = len(data)
        return names

    def _make_room(self, count: int, needed: Collection[str]) -> None:
        """Removes what was not used for the longest time, so that `count` bytes more are not too many."""
        total = sum(self._there.values()) + count
        for there in list(self._there):
            if total > KEPT_BYTES and there not in needed:
                self.drop(there)
                total -= self._there.pop(there)

    # --- connecting -----------------------------------------------------------------------------------------------

    def _start(self) -> None:
        try:
            self._connect()
        except Vanished as error:
            advice = next(advice for said, advice in ADVICE if said in str(error))
            raise Unmeasurable(f"{self._board} cannot be reached: {error}; {advice}") from None

    def _come_back(self, why: Vanished | None) -> None:
        """A new runner. Where the board has vanished (`why`), attempts until it is there again."""
        until, pause = time.monotonic() + WAITED, FIRST_PAUSE
        while True:
            try:
                if why is not None:
                    left = until - time.monotonic()
                    self._say(f"{self._board} has vanished ({why}); it is waited for, {max(0.0, left):.0f} s at most")
                    if self._leaving.wait(min(pause, max(0.0, left))):
                        raise Unmeasurable("the runner is closed")
                    pause = min(2 * pause, LONGEST_PAUSE)
                self._connect()
            except Vanished as error:
                why = error
                if time.monotonic() >= until:
                    break
            else:
                self._say(f"{self._board} is there")
                return
        raise Unmeasurable(
            f"{self._board} has vanished and was not there again within {WAITED:g} s: {why}; what was measured is in "
            "the database, if there is one: the same command goes on from it"
        )

    def _connect(self) -> None:
        self._there.clear()
        self._launch(self._board.command)
        try:
            runner = program(machine_of(self.target.triple).gnu_triple, alone=True).read_bytes()
            self._write(f"{self._board.folder}\n{len(runner)}\n".encode())
            self._check_machine(self._greeting(HELLO))
            self._write(runner)
            self._greeting(READY)
            self._check_features()
        except MeasureError as error:
            raise self._refusal(error) from None

    def _greeting(self, word: str) -> str:
        """What follows `word` in the line that begins with it; before it, a login may print something."""
        noise = 0
        while noise < MOST_NOISE:
            line = self._line(PATIENCE)
            if line.startswith(word.encode()):
                return line[len(word) :].decode(errors="replace").strip()
            noise += len(line)
        raise MeasureError("what answers is no shell that modelc can use")

    def _check_machine(self, name: str) -> None:
        machine = machine_of(self.target.triple)
        if machine.name not in RUNS.get(name, (name,)):
            self.close()
            raise TargetError(
                f"{self._board} is {name[:80]}, and the target {self.target.name} is {machine.name}: name the target "
                "that it is by --target"
            )

    def _refusal(self, error: MeasureError) -> MeasureError:
        """Why there is no runner, by what the shell there exits with."""
        code = None if self._process is None else self._process.returncode
        if isinstance(error, Vanished):
            return error
        if code in REFUSALS:
            return Unmeasurable(f"{REFUSALS[code]} on {self._board}: {error}; {ELSEWHERE}")
        return Unmeasurable(f"the runner does not work on {self._board}: {error}")

    def _write(self, data: bytes) -> None:
        try:
            super()._write(data)
        except MeasureError as error:
            raise self._failure(error) from None

    def _more(self, seconds: float) -> None:
        try:
            super()._more(seconds)
        except MeasureError as error:
            raise self._failure(error) from None

    def _failure(self, error: MeasureError) -> MeasureError:
        """Why the runner does not answer: it has ended, or ssh has, which its exit code says."""
        process = self._process
        if process is None:
            return error
        try:
            code = process.wait(ENDING)
        except subprocess.TimeoutExpired:
            return Vanished("it does not answer")
        said = (end_of(self._log).splitlines() or ["it said nothing"])[-1].strip()
        return Vanished(said) if code == GONE else MeasureError(said)
