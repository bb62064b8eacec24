"""A board over ssh, by a program of that name that speaks as it does and starts the command here: it exits with 255
where there is no connection, or none any more."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import tuning_runs
from measured_tasks import CONV, QUICK, TASKS, several
from three_ways import host_target, started, task_of

from modelc.cli import main
from modelc.database import Database
from modelc.errors import ConfigError, ModelcError, ToolchainError, Unmeasurable
from modelc.measure import Measurement, Measurer, Where, bench, ssh
from modelc.measure.ssh import Board
from modelc.package import emulator, find_toolchain
from modelc.target import load_target

STAND_IN = f"""#!{sys.executable}
import os, subprocess, sys, threading, time
from pathlib import Path

here = Path(__file__).parent
place, command = sys.argv[sys.argv.index("--") + 1 :]
with (here / "calls").open("a") as calls:
    calls.write(place + "\\n")
gone = here / "gone"
if gone.exists():
    print(gone.read_text(), file=sys.stderr)
    os._exit(255)
(here / "board").mkdir(exist_ok=True)
env = {{**os.environ, "TMPDIR": str(here / "board"), "PATH": f"{{here / 'there'}}:{{os.environ['PATH']}}"}}
print("a greeting of the login")
sys.stdout.flush()
before = (here / "before").read_text() if (here / "before").exists() else ""
child = subprocess.Popen(["sh", "-c", before + command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env)

def pump(source, sink):
    try:
        while data := os.read(source, 65536):
            while data:
                data = data[os.write(sink, data) :]
        os.close(sink)
    except BrokenPipeError:
        pass

inwards = threading.Thread(target=pump, args=(0, child.stdin.fileno()), daemon=True)
outwards = threading.Thread(target=pump, args=(child.stdout.fileno(), 1), daemon=True)
inwards.start(), outwards.start()
while child.poll() is None:
    if gone.exists():
        print("Connection to board closed by remote host.", file=sys.stderr, flush=True)
        os._exit(255)
    time.sleep(0.01)
outwards.join()
os._exit(child.returncode)
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the stand-in: `gone` takes the board away, `board` is where its files are, `there` has programs
    that it finds before others, and `before` is what its shell does first."""
    folder = tmp_path / "ssh"
    (folder / "there").mkdir(parents=True)
    (folder / "ssh").write_text(STAND_IN)
    (folder / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return folder


def measurer(board: str = "ssh://me@board:2222", say: Callable[[str], None] = lambda text: None) -> Measurer:
    return Measurer(host_target(), builders=1, effort=QUICK, where=Where.parse(board), say=say)


def emptied(folder: Path) -> bool:
    """Whether a board has removed everything, as it does when the connection has ended."""
    until = time.monotonic() + 120
    while any(folder.iterdir()) and time.monotonic() < until:
        time.sleep(0.02)
    return not any(folder.iterdir())


def test_what_is_right_is_timed_there(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put, sent, kept = ssh.SshRunner.put, Counter[str](), list[int]()

    def putting(self: ssh.SshRunner, name: str, data: bytes) -> None:
        sent[name] += 1
        put(self, name, data)

    monkeypatch.setattr(ssh.SshRunner, "put", putting)
    with measurer() as found:
        assert not found.bench.measuring, "builders would stand still for what another machine does"
        for task in (CONV, TASKS["softmax"], TASKS["opaque"], CONV):
            subject = found.subject(task, cold_bytes=1 << 18)
            some = found.measure(subject, [started(task, host_target())] * 3)
            assert all(one.ok and one.seconds > 0 and one.repeats >= 1 for one in some), some
            (folder,) = (here / "board").iterdir()
            kept.append(sum(path.stat().st_size for path in folder.iterdir() if path.name != "runner"))
            monkeypatch.setattr(ssh, "KEPT_BYTES", kept[0])  # beside what the first task needs there is no room
    assert 50_000 < max(kept) == kept[0]
    jobs = [name for name in sent if name.endswith(".job")]
    assert max(sent[name] for name in set(sent) - set(jobs)) == 2, "what had to make room is sent again"
    assert len(jobs) == 12 and max(sent[name] for name in jobs) <= 2 + bench.AGAIN, "done again without a reason"
    files = [sent[name] for name in sent if name not in jobs]
    assert len(files) < 20, "what candidates share is sent for each"
    assert max(files) == 2, "what was removed is not sent again"
    assert emptied(here / "board")
    assert (here / "calls").read_text() == "me@board\n", "one process of ssh is enough"


def test_a_board_that_vanishes_is_waited_for(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ssh, "FIRST_PAUSE", 0.05)
    said: list[str] = []
    asked, jobs = ssh.SshRunner._asked, list[str]()

    def say(text: str) -> None:
        said.append(text)
        if len(said) == 3:
            (here / "gone").unlink()

    def asking(self: ssh.SshRunner, command: str, seconds: float) -> object:
        jobs.append(command)
        if len(jobs) == 4:  # it vanishes between this job and the one before
            assert self._process is not None
            (here / "gone").write_text("ssh: connect to host board port 2222: No route to host")
            self._process.wait(120)
        return asked(self, command, seconds)

    monkeypatch.setattr(ssh.SshRunner, "_asked", asking)
    with measurer(say=say) as found:
        outcomes = [one.outcome for one in found.measure(found.subject(CONV), several(8))]
    assert outcomes == ["ok"] * 8 and len(jobs) > 8, "the fourth is done again"
    assert said[0] == (
        "ssh://me@board:2222 has vanished (Connection to board closed by remote host.); it is waited for, 300 s at most"
    )
    assert "No route to host" in said[1] and said[-1] == "ssh://me@board:2222 is there"
    assert emptied(here / "board")


def test_one_that_does_not_come_back_is_a_sentence(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ssh, "FIRST_PAUSE", 0.02)
    monkeypatch.setattr(ssh, "WAITED", 0.2)
    good: list[Measurement] = []
    sentence = r"ssh://board has vanished and was not there again within 0.2 s: .*refused"
    with pytest.raises(Unmeasurable, match=sentence), measurer("ssh://board") as found:
        subject = found.subject(CONV)
        for candidate in several(100):
            found.submit(subject, candidate)
        for _, one in found.results():
            good.append(one)
            (here / "gone").write_text("ssh: connect to host board port 22: Connection refused")
    assert good and all(one.ok for one in good)


def test_a_board_that_one_candidate_takes_away_twice_goes_on(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every job takes it away that has the word `time`, until it has done so twice."""
    monkeypatch.setattr(ssh, "FIRST_PAUSE", 0.02)
    asked = ssh.SshRunner._asked
    left = [2]

    def taken_away(self: ssh.SshRunner, command: str, seconds: float) -> object:
        if left[0]:
            left[0] -= 1
            assert self._process is not None
            (here / "gone").write_text("it is away")
            self._process.wait(120)
            (here / "gone").unlink()
        return asked(self, command, seconds)

    monkeypatch.setattr(ssh.SshRunner, "_asked", taken_away)
    with measurer() as found:
        outcomes = [(one.outcome, one.message) for one in found.measure(found.subject(CONV), several(3))]
    assert outcomes[0] == ("crashed", "ssh://me@board:2222 vanished twice while this was measured")
    assert outcomes[1:] == [("ok", "")] * 2


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        ("ssh: connect to host board port 22: Connection timed out", "see that it is on"),
        ("ssh: Could not resolve hostname board: Name or service not known", "see that its name is right"),
        ("me@board: Permission denied (publickey).", "ssh has to get in without a password"),
        ("Host key verification failed.", "connect to it once by hand"),
    ],
)
def test_boards_that_cannot_be_reached_are_sentences(here: Path, said: str, sentence: str) -> None:
    (here / "gone").write_text(said)
    with (
        pytest.raises(Unmeasurable, match=f"^ssh://board cannot be reached: {re.escape(said)}; .*{sentence}"),
        measurer("ssh://board"),
    ):
        pass


def program(here: Path, name: str, text: str) -> None:
    (here / "there" / name).write_text(f"#!/bin/sh\n{text}\n")
    (here / "there" / name).chmod(0o755)


@pytest.mark.parametrize(
    ("name", "text", "board", "sentence"),
    [
        (
            "uname",
            "echo sparc64",
            "ssh://b",
            "^ssh://b is sparc64, and the target .* is .*: name the target that it is",
        ),
        ("true", "", "ssh://b/no/such", "^no folder can be made on ssh://b/no/such: .*No such file.*; name a folder"),
        (
            "head",
            "echo no space left >&2; exit 1",
            "ssh://b",
            "^the runner cannot be written on ssh://b: no space left;",
        ),
        ("chmod", "", "ssh://b", "^the runner cannot be started on ssh://b: .*[Pp]ermission denied; name a folder"),
        (
            "chmod",
            "echo 'echo hm >&2' > $2; chmod() { /bin/chmod $*; }; /bin/chmod $*",
            "ssh://b",
            "does not work on ssh://b: hm",
        ),
    ],
)
def test_boards_that_cannot_be_used_are_sentences(here: Path, name: str, text: str, board: str, sentence: str) -> None:
    program(here, name, text)
    with pytest.raises(ModelcError, match=sentence), measurer(board):
        pass
    assert emptied(here / "board")


def test_a_full_disk_there_is_a_sentence(here: Path) -> None:
    """No file there may become larger than the runner, so that the constants do not fit."""
    (here / "before").write_text("trap '' XFSZ; ulimit -f 8192; ")  # of half a KB
    task = task_of("MatMul", {}, [(2, 1024), (1024, 2048)], (1,))
    with measurer() as found:
        assert found.measure(found.subject(CONV), several(1))[0].ok
        with pytest.raises(
            Unmeasurable, match=r"does not take what is measured: cannot write: \w+: File too large; name"
        ):
            found.measure(found.subject(task), [started(task, host_target())])


@pytest.mark.parametrize(
    ("text", "fine"),
    [
        ("ssh://pi", Board("pi")),
        ("ssh://me@pi.local:2222/mnt/big", Board("pi.local", "me", 2222, "/mnt/big")),
        ("ssh://[fe80::1%25eth0]/", Board("fe80::1%25eth0")),
        ("ssh://me:secret@pi", None),
        ("ssh://-oProxyCommand=x", None),
        ("ssh://-l@pi", None),
        ("ssh://pi:port", None),
        ("ssh://pi:0", None),
        ("ssh://pi/a%0ab", None),
        ("ssh://pi;reboot", None),
        ("ssh://", None),
        ("ssh://pi?x=1", None),
    ],
)
def test_how_boards_are_named(text: str, fine: Board | None) -> None:
    if fine is not None:
        assert Board.parse(text) == fine
    else:
        with pytest.raises(ConfigError, match="expected ssh://USER@HOST:PORT/FOLDER"):
            Board.parse(text)


def test_tune_on_a_board_goes_on_where_it_vanished(here: Path, tmp_path: Path, monkeypatch, capsys, in_brief) -> None:
    monkeypatch.setattr(ssh, "FIRST_PAUSE", 0.02)
    monkeypatch.setattr(ssh, "WAITED", 0.1)
    path, database = tuning_runs.network(tmp_path, (200, 336)), tmp_path / "d"
    said = ["--target", "native", "--runner", "ssh://board", "--explorer", "random", "--database", str(database)]

    def tuned(budget: str) -> int:
        with pytest.raises(SystemExit) as stop:
            main(["tune", str(path), "--budget", budget, *said, "--json", "-o", str(tmp_path / "t.modelc")])
        return int(stop.value.code or 0)

    add = Database.add
    added: list[object] = []

    def adding(self: Database, *what: object) -> int:
        added.append(what)
        if len(added) == 3:
            (here / "gone").write_text("Connection refused")
        return add(self, *what)

    with monkeypatch.context() as patch:
        patch.setattr(Database, "add", adding)
        assert tuned("1000") == 2
    error = capsys.readouterr()
    assert (
        "ssh://board has vanished and was not there again" in json.loads(error.out.splitlines()[-1])["error"]["message"]
    )
    assert "board ssh://board has vanished" in error.err and not (tmp_path / "t.modelc").exists()
    known = tuning_runs.stored(tmp_path)
    assert len(known) == len(added) >= 3
    (here / "gone").unlink()
    assert tuned("4") == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found["known_records"] == len(known) and found["verification"]["passed"]
    records = tuning_runs.stored(tmp_path)
    assert records[: len(known)] == known and len(records) in (len(known), len(known) + 4), (
        "none where a roofline is near"
    )
    assert {one.conditions.target for one in records} == {load_target("native").key}, "what compile looks for"


def test_a_board_of_another_machine(here: Path) -> None:
    """Its programs run under an emulator here, without any library of that machine."""
    target = load_target("cortex-a72")
    try:
        find_toolchain(target.triple)
        qemu, *_ = emulator(target.triple)
    except ToolchainError as error:
        pytest.skip(str(error))
    program(here, "uname", "echo aarch64")
    start = f'#!/bin/sh\\nexec {qemu} -cpu max "$0.elf" "$@"\\n'
    program(here, "chmod", f"mv $2 $2.elf; printf '{start}' > $2; /bin/chmod $1 $2 $2.elf")
    with Measurer(target, builders=1, effort=QUICK, where=Where.parse("ssh://pi@board")) as found:
        for task in (CONV, TASKS["softmax"], TASKS["float16"]):
            some = found.measure(found.subject(task, cold_bytes=1 << 16), [started(task, target)] * 2)
            assert [one.outcome for one in some] == ["ok"] * 2, some
    assert emptied(here / "board")
