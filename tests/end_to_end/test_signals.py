"""Whatever ends a command, nothing half-written is left; what only SIGKILL could leave, the next command removes that
writes there, and makes nothing of what somebody else has left."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import small_model as small
from library_of import library_of
from modelc_process import ROOT, as_from_a_terminal, modelc
from onnx import helper
from tiny_package import NATIVE_TRIPLE

from modelc import scratch
from modelc.cli import main
from modelc.package import find_toolchain
from modelc.scratch import TemporaryFolder, beside, put_back, remove_temporary
from modelc.signals import ENDING, SAME

COMPILER = """#!/bin/sh
while [ "$1" != --version ] && [ "$1" != -dumpmachine ] && [ "$2" != empty.c ] && [ -e {hold} ] && kill -0 $PPID; do
    : > {there}
    sleep 0.05
done
exec {real} "$@"
"""


@pytest.fixture
def hold(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file: while it is there, the C compiler waits, so that no compilation is done before its signal comes. One that
    waits has made a file `there`, beside it."""
    folder = tmp_path_factory.mktemp("compiler")
    hold, there, script = folder / "hold", folder / "there", folder / "cc"
    real = shlex.join(find_toolchain(NATIVE_TRIPLE).command)
    script.write_text(COMPILER.format(hold=hold, there=there, real=real))
    script.chmod(0o755)
    hold.touch()
    monkeypatch.setenv("CC", str(script))
    return hold


def wait_for(file: Path, process: subprocess.Popen[str]) -> None:
    end = time.monotonic() + 240
    while not file.exists():
        assert process.poll() is None and time.monotonic() < end
        time.sleep(0.01)


def compiling(folder: Path) -> tuple[object, ...]:
    return "compile", small.model(), "--shape", "x=1,3,20,24", "-o", folder / "p"


def left(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path != folder / "tmp")


@pytest.mark.parametrize("number", [*ENDING[:2], *(pytest.param(n, marks=pytest.mark.slow) for n in ENDING[2:])])
def test_a_signal_ends_a_compilation_without_a_trace(tmp_path: Path, hold: Path, number: int) -> None:
    with modelc(tmp_path, *compiling(tmp_path), until="codegen") as process:
        process.send_signal(number)
        said = process.communicate()[1]
    assert process.returncode == 128 + number and "Traceback" not in said, said
    assert said.splitlines()[-1].startswith("modelc: interrupted" if number == signal.SIGINT else "modelc: ended by")
    assert left(tmp_path) == []


@pytest.mark.parametrize("delay", [0.0, 0.05, 0.1, 0.2, 0.4])
def test_a_signal_during_imports_is_answered_by_a_sentence(tmp_path: Path, delay: float) -> None:
    with modelc(tmp_path, "targets", "list") as process:
        status, end = Path(f"/proc/{process.pid}/status"), time.monotonic() + 120
        while not caught(status.read_text()) >> (signal.SIGQUIT - 1) & 1:  # Python itself does not catch this one
            assert process.poll() is None and time.monotonic() < end
        time.sleep(delay)
        process.send_signal(signal.SIGINT)
        said = process.communicate()[1]
    assert (process.returncode, said.lstrip("\n")) in [
        (130, "modelc: interrupted\n"),
        (0, ""),
    ]  # click ends the line of ^C


def test_a_signal_during_a_long_import_is_answered_at_once(tmp_path: Path) -> None:
    there = tmp_path / "there"
    (tmp_path / "click.py").write_text(f"import time\nopen({str(there)!r}, 'w').close()\ntime.sleep(1000)\n")
    with modelc(tmp_path, "targets", "list", path=f"{tmp_path}:{ROOT}") as process:
        wait_for(there, process)
        process.send_signal(signal.SIGINT)
        said = process.communicate()[1]
    assert (process.returncode, said) == (130, "modelc: interrupted\n")


def caught(status: str) -> int:
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("SigCgt")), 16)


def test_what_nohup_ignores_stays_ignored(tmp_path: Path, hold: Path) -> None:
    def before() -> None:
        as_from_a_terminal()
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    with modelc(tmp_path, *compiling(tmp_path), "--no-verify", until="codegen", before=before) as process:
        process.send_signal(signal.SIGHUP)
        process.send_signal(signal.SIGINT)
        hold.unlink()
        process.communicate()
    assert process.returncode == 0 and (tmp_path / "p/manifest.json").is_file()


def test_a_killed_compilation_is_tidied_by_the_next_one(tmp_path: Path, hold: Path) -> None:
    with modelc(tmp_path, *compiling(tmp_path), until="package") as process:
        wait_for(hold.with_name("there"), process)
        process.kill()
        process.communicate()
    assert list(tmp_path.glob(".p.*.modelc.partial")) and list(tmp_path.glob("tmp/modelc-tmp-*"))
    (tmp_path / "mine.partial").mkdir()
    (tmp_path / ".other.12345678.modelc.partial").mkdir()
    killed = left(tmp_path)
    with modelc(tmp_path, "targets", "list") as process:
        process.communicate()
    assert process.returncode == 0 and left(tmp_path) == killed
    hold.unlink()
    with modelc(tmp_path, *compiling(tmp_path), "--no-verify") as process:
        process.communicate()
    assert process.returncode == 0
    assert sorted(os.listdir(tmp_path)) == [".other.12345678.modelc.partial", "mine.partial", "p", "tmp"]
    assert not list(tmp_path.glob("tmp/modelc-*"))


def test_no_command_makes_a_file_of_what_lies_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A repository that somebody else has made, in which folders are called as what modelc sets aside."""
    folder = tmp_path / "models"
    (tmp_path / "tmp").mkdir()
    planted = "..git", ".hooks", ".p", ".x", "..q", ".d"
    for name in planted:
        for number in ("abcdefgh", "00000001"):
            aside = folder / f"{name}.{number}.modelc.old"
            aside.mkdir(parents=True)
            (aside / "config").write_text("[core]\nfsmonitor = touch executed\n")
    before = set(os.listdir(folder))
    small.save(folder / "net.onnx", [helper.make_node("Relu", ["x"], ["y"])], {"x": ["n"]}, {"y": ["n"]}, {})
    np.savez(folder / "in.npz", x=np.ones(4, np.float32))
    monkeypatch.chdir(folder)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    verbs = (
        "--version",
        "targets list",
        "targets probe -o here.yaml",
        "inspect net.onnx",
        "compile net.onnx --shape x=4 -o p",
        "compile none.onnx -o q",
        "compile net.onnx --shape x=4 --no-verify -o .q",
        "inspect p",
        "run p --inputs in.npz --outputs x",
        "database import none --database d",
        "compile none.onnx -o .git",
    )
    made = {"net.onnx", "in.npz", "here.yaml", "p", ".q", "x", "d"}
    for verb in verbs:
        with pytest.raises(SystemExit) as end:
            main(verb.split())
        assert (end.value.code or 0) == (2 if "none" in verb else 0), verb
        assert set(os.listdir(folder)) - made == before, verb
    assert {file.name for file in (folder / "p").iterdir()} >= {"manifest.json", library_of(folder / "p").name}
    assert not (folder / "p/config").exists() and not (folder / ".q/config").exists()


# --- signals that follow each other ----------------------------------------------------------------------------

SLOW = """
import subprocess, sys, time
from pathlib import Path
from modelc import cli
from modelc.scratch import TemporaryFolder, beside
from modelc.signals import tidy_ends

with tidy_ends(last=True):
    with TemporaryFolder("slow") as folder, beside(Path("p"), folder=True) as made:
        (made / "half").touch()
        subprocess.Popen(["sh", "-c", "trap '' TERM; sh -c 'sleep 1000; :' slow-child; :"], start_new_session=True)
        try:
            print("made", flush=True)
            time.sleep(1000)
        finally:
            print("unwinding", flush=True)
            time.sleep(float(sys.argv[1]))
"""


def processes_in(folder: Path) -> list[str]:
    """The command lines of the processes whose working folder it is."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if (process / "cwd").samefile(folder) and (command := (process / "cmdline").read_bytes()):
                found.append(command.replace(b"\0", b" ").decode())
        except OSError:  # it has ended, or is somebody else's
            continue
    return found


@contextmanager
def killed(process: subprocess.Popen[str]) -> Iterator[None]:
    """At the end of a test that fails too, for which nobody would wait."""
    try:
        yield
    finally:
        process.kill()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_second_signal_does_not_wait_for_the_first(tmp_path: Path, number: int) -> None:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)}
    with subprocess.Popen(
        [sys.executable, "-c", SLOW, "1000"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env,
        cwd=tmp_path, preexec_fn=as_from_a_terminal,
    ) as process, killed(process):  # fmt: skip
        assert process.stdout is not None and process.stdout.readline() == "made\n"
        until = time.monotonic() + 60
        while (running := len(processes_in(tmp_path))) < 3 and time.monotonic() < until:
            time.sleep(0.05)
        assert len(left(tmp_path)) == 3 and running >= 3  # one that execs has no command line for a moment
        first = time.monotonic()
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "unwinding\n"
        process.send_signal(signal.SIGINT)  # at once: it is the same one, from what has started it
        if time.monotonic() - first > SAME:
            pytest.skip("this machine was too busy to send two signals at once")
        time.sleep(SAME + 0.1)
        assert process.poll() is None
        process.send_signal(number)
        said = process.communicate(timeout=60)[1]
    assert process.returncode == 128 + number and said.startswith("modelc: ") and said.count("\n") == 1
    assert processes_in(tmp_path) == [] and left(tmp_path) == []


def test_a_second_interrupt_ends_what_tuning_makes_of_the_first(tmp_path: Path, hold: Path) -> None:
    flags = ["--shape", "x=1,3,20,24", "--budget", "8", "--no-database", "-o", "t"]
    there = hold.with_name("there")
    hold.unlink()
    with modelc(tmp_path, "tune", small.model(), *flags, until="compare") as process:
        hold.touch()
        process.send_signal(signal.SIGINT)
        time.sleep(SAME + 0.1)
        wait_for(there, process)  # the package is made without timing
        begun = time.monotonic()
        process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=120)[1]
    assert process.returncode == 130 and "Traceback" not in said, said
    assert said.splitlines()[-1] == "modelc: interrupted" and time.monotonic() - begun < 30
    assert processes_in(tmp_path) == [] and left(tmp_path) == []


# --- users' functions that exit -------------------------------------------------------------------------------------

EXITS = """
import os
from modelc.signals import no_exit
try:
    with no_exit():
        child = os.fork()
        if not child:
            os._exit(7)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
        os._exit(0)
except RuntimeError as error:
    print(error, flush=True)
os._exit(5)
"""


def test_a_function_of_the_users_does_not_exit() -> None:
    done = subprocess.run([sys.executable, "-c", EXITS], capture_output=True, text=True, env={"PYTHONPATH": str(ROOT)})
    assert (done.returncode, done.stdout) == (5, "7\nit called os._exit(0)\n"), done.stderr


# --- locks --------------------------------------------------------------------------------------------------------


def test_what_is_in_use_is_no_orphan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = scratch.held()
    with TemporaryFolder("test") as name, beside(tmp_path / "p", folder=True) as made:
        with beside(tmp_path / "file", folder=False) as file:
            assert file.stat().st_size == 0 and scratch.held()
            program = (
                "import sys; from pathlib import Path; from modelc.scratch import *; folder = Path(sys.argv[1])\n"
                "remove_temporary(folder); put_back(folder / 'p')\n"
                "for name in ('p', 'file'):\n    with beside(folder / name, folder=True): pass"
            )
            subprocess.run([sys.executable, "-c", program, tmp_path], check=True, env={"PYTHONPATH": str(ROOT)})
            assert {Path(name), made, file} == set(tmp_path.iterdir())
        assert not file.exists()
    assert not list(tmp_path.iterdir()) and scratch.held() == before


@pytest.mark.parametrize(
    "name",
    [
        ".p.12345678.partial",
        "p.12345678.modelc.partial",
        ".p.1234567.modelc.partial",
        ".q.12345678.modelc.partial",
        ".p.q.12345678.modelc.partial",
        ".p.12345678.modelc.old",
        "modelc-tmp-x",
        "modelc-12345678",
    ],
)
def test_names_of_others_are_left_alone(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    tidy(tmp_path / "p")
    assert os.listdir(tmp_path) == [name]


def tidy(place: Path) -> None:
    """What a command does that needs a folder for temporary files where `place` is, and writes a package there."""
    remove_temporary(place.parent)
    put_back(place)
    with beside(place, folder=True):
        pass


def numbered(path: Path, name: str) -> Path:
    """Renames it to a name with the number of its inode, as what modelc makes has one."""
    return path.rename(path.with_name(name.format(f"{path.stat(follow_symlinks=False).st_ino:08x}")))


@pytest.mark.parametrize("name", [".p.12345678{}.modelc.partial", "modelc-tmp-run-12345678{}", ".p.{}.modelc.old"])
def test_what_came_from_elsewhere_is_left_alone(tmp_path: Path, name: str) -> None:
    """A folder of such a name in a repository, or a copy of one that modelc has made."""
    for number in ("", "00000001"):
        place = tmp_path / name.format(number)
        place.mkdir()
        (place / "thesis.tex").write_text("years of work")
        tidy(tmp_path / "p")
        assert (place / "thesis.tex").read_text() == "years of work"


def test_orphans_are_removed_and_links_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/thesis.tex").write_text("")
    for name in (".p.12345678{}.modelc.partial", "modelc-tmp-run-12345678{}", ".p.abcdefgh{}.modelc.partial"):
        (tmp_path / "new").mkdir()
        (tmp_path / "new/link").symlink_to(tmp_path / "mine")
        numbered(tmp_path / "new", name)
    (tmp_path / "new").write_text("")
    numbered(tmp_path / "new", ".p.abcdefg1{}.modelc.partial")
    (tmp_path / "new").symlink_to(tmp_path / "mine")
    link = numbered(tmp_path / "new", ".p.abcdefg2{}.modelc.partial")
    os.mkfifo(tmp_path / "new")
    pipe = numbered(tmp_path / "new", ".p.abcdefg3{}.modelc.partial")
    tidy(tmp_path / "p")
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"mine", link.name, pipe.name} and (tmp_path / "mine/thesis.tex").exists()
    remove_temporary(tmp_path / "none")
    put_back(tmp_path / "none/p")


KILLED_BETWEEN = """
import os, signal, sys
from pathlib import Path
from modelc.scratch import replace

def rename(one, other):
    real(one, other)
    os.kill(os.getpid(), signal.SIGKILL)

real, os.rename = os.rename, rename
replace(Path(sys.argv[1]), Path(sys.argv[2]))
"""


def killed_between_the_steps(place: Path) -> Path:
    """What a process leaves that replaces the folder `place` and is killed when that is set aside."""
    made = place.with_name("made")
    for folder, text in ((place, "old"), (made, "new")):
        folder.mkdir()
        (folder / "manifest.json").write_text(text)
    command = [sys.executable, "-c", KILLED_BETWEEN, str(made), str(place)]
    done = subprocess.run(command, env={"PYTHONPATH": str(ROOT)})
    shutil.rmtree(made)
    (aside,) = place.parent.iterdir()
    assert done.returncode == -signal.SIGKILL
    assert aside.name.startswith(f".{place.name}.") and aside.name.endswith(".modelc.old")
    return aside


def test_a_package_that_was_set_aside_comes_back(tmp_path: Path) -> None:
    place = tmp_path / "p"
    aside = killed_between_the_steps(place)
    tidy(tmp_path / "other")
    assert list(tmp_path.iterdir()) == [aside], "another place was written"
    shutil.copytree(aside, tmp_path / ".p.00000001.modelc.old")  # no process has set this aside
    tidy(place)
    assert (place / "manifest.json").read_text() == "old"
    assert sorted(os.listdir(tmp_path)) == [".p.00000001.modelc.old", "p"]


def test_what_was_set_aside_goes_where_the_new_package_is_there(tmp_path: Path) -> None:
    place = tmp_path / "p"
    place.mkdir()
    (tmp_path / "old").mkdir()
    aside = tmp_path / f".p.{(tmp_path / 'old').stat().st_ino:08x}.modelc.old"
    os.rename(tmp_path / "old", aside)
    tidy(place)
    assert list(tmp_path.iterdir()) == [place]


def test_nothing_comes_back_under_a_name_that_begins_with_a_dot(tmp_path: Path) -> None:
    aside = killed_between_the_steps(tmp_path / ".git")
    tidy(tmp_path / ".git")
    assert list(tmp_path.iterdir()) == [aside]
