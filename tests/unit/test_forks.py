"""Work by forks of a process: every result, errors as they were raised, and nothing left behind."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modelc.errors import ModelError
from modelc.forks import shared
from modelc.python_worker import worker_command


def run(tmp_path, body: str) -> subprocess.CompletedProcess[str]:
    """What a process of modelc's own says, which may fork."""
    script = tmp_path / "script.py"
    script.write_text(
        "import json, os, signal, sys, time\n"
        "from modelc.errors import ModelError, ProcessError\n"
        "from modelc.forks import can_fork, shared\n"
        "assert can_fork()\n" + body
    )
    return subprocess.run(worker_command(script), capture_output=True, text=True, timeout=60)


def test_results_are_those_of_the_items_by_several_processes(tmp_path) -> None:
    done = run(
        tmp_path,
        "results = dict(shared(lambda n: (n * n, os.getpid(), b'x' * 100_000), range(50), 3))\n"
        "processes = {pid for _, pid, _ in results.values()} - {os.getpid()}\n"
        "print(json.dumps([[results[n][0] for n in range(50)], len(processes)]))",
    )
    squares, processes = json.loads(done.stdout)
    assert squares == [n * n for n in range(50)] and 1 <= processes <= 3


def test_more_items_than_a_pipe_takes(tmp_path) -> None:
    done = run(tmp_path, "print(sum(r for _, r in shared(lambda n: n, range(20_000), 2)))")
    assert int(done.stdout) == sum(range(20_000)), done.stderr


FAILING = {  # what the items are put to, and what is said of it
    "an error": (
        "def work(n):\n    if n == 7: raise ModelError('the seventh is wrong')",
        "ModelError the seventh is wrong, in work: True",
    ),
    "an error that cannot be sent": (
        "class Odd(Exception):\n    def __reduce__(self): raise TypeError\ndef work(n): raise Odd('so it is')",
        "RuntimeError Odd: so it is, in work: True",
    ),
    "a process that is killed": (
        "def work(n):\n    if n == 3: os.kill(os.getpid(), signal.SIGKILL)",
        "ProcessError a process beside this one was ended by SIGKILL; where memory is short, say --threads 1, "
        "in work: False",
    ),
    "no process": (
        "def fork(): raise OSError(11, 'too many')\nos.fork, work = fork, abs",
        "ProcessError no process can be started beside this one: too many; say --threads 1, in work: False",
    ),
}


@pytest.mark.parametrize("failing", FAILING)
def test_what_fails_is_said_and_where(tmp_path, failing) -> None:
    """Signals come through as before."""
    definition, said = FAILING[failing]
    done = run(
        tmp_path,
        f"{definition}\n"
        "mask = signal.pthread_sigmask(signal.SIG_BLOCK, [])\n"
        "try:\n"
        "    list(shared(work, range(5000), 2))\n"
        "except Exception as error:\n"
        "    print(f'{type(error).__name__} {error}, in work:', 'in work' in str(error.__cause__))\n"
        "assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == mask\n",
    )
    assert (done.stdout, done.returncode) == (f"{said}\n", 0), done.stderr


def test_none_is_left_when_who_asked_ends_early(tmp_path) -> None:
    done = run(
        tmp_path,
        "for _, pid in shared(lambda n: os.getpid() if n < 2 else time.sleep(60), range(10), 2):\n"
        "    break\n"
        "del _\n"
        "import gc; gc.collect()\n"
        "try:\n"
        "    os.waitpid(-1, 0)\n"
        "except ChildProcessError:\n"
        "    print('none')\n",
    )
    assert done.stdout == "none\n", done.stderr


@given(count=st.integers(0, 20), processes=st.integers(1, 5), threads=st.booleans())
def test_where_nothing_forks_results_are_the_same(count, processes, threads) -> None:
    assert dict(shared(lambda n: n + 1, range(count), processes, threads)) == {n: n + 1 for n in range(count)}


def test_an_error_of_a_thread_is_raised() -> None:
    def fail(n: int) -> int:
        raise ModelError("wrong")

    with pytest.raises(ModelError, match="wrong"):
        list(shared(fail, range(4), 2, threads=True))


def test_other_peoples_processes_do_not_fork() -> None:
    code = "from modelc.forks import can_fork; print(can_fork())"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"
