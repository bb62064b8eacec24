"""Tests have a cache of their own: what the user has measured neither changes what they see, nor is changed by them.
And the package of the tiny model, for those who open or damage packages."""

from __future__ import annotations

import atexit
import gc
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from documents import check_documents
from hypothesis import HealthCheck, settings
from tiny_package import spec_of

from modelc.cli import main, output
from modelc.package import write_package
from modelc.scratch import user_cache
from modelc.target import load_target
from modelc.tune import any_size, end_to_end, retiming, selection
from modelc.verify import diff, engine

OWN = "MODELC_TESTS_CACHE"  # says to workers that it is there already; what they make there goes with it

gc.disable()  # until all tests are there: importing makes no garbage

settings.register_profile("unhurried", max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unhurried")  # how long an example takes, or its drawing, says something of this machine alone

if OWN not in os.environ:
    theirs = user_cache()
    os.environ.pop("MODELC_CACHE", None)
    os.environ.pop("MODELC_TARGET", None)
    os.environ["MODELC_NO_BENCH"] = "1"  # compiling ends with a look at the clock, which tests can do without
    os.environ[OWN] = os.environ["XDG_CACHE_HOME"] = own = tempfile.mkdtemp(prefix="modelc-tests-")
    atexit.register(shutil.rmtree, own, ignore_errors=True)
    user_cache().mkdir(mode=0o700)
    for probed in theirs.glob("native-*.yaml"):  # timings of this machine, which take a second
        shutil.copy(probed, user_cache())


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of the cases of a test that is marked sweep(n), n are run, which are spread over all of them; the others are
    slow."""
    sweeps: dict[tuple[Path, str], list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("sweep") and isinstance(item, pytest.Function):
            sweeps.setdefault((item.path, item.originalname), []).append(item)
    for cases in sweeps.values():
        mark = cases[0].get_closest_marker("sweep")
        assert mark is not None
        (count,) = mark.args
        fast = [case for case in cases if not case.get_closest_marker("slow")]
        kept = {len(fast) * (2 * k + 1) // (2 * count) for k in range(count)}
        for number, case in enumerate(fast):
            if number not in kept:
                case.add_marker(pytest.mark.slow)


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop() -> None:
    """What is there now stays: it is never looked through for garbage."""
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)
    gc.enable()


@pytest.fixture(autouse=True)
def no_database_of_the_user() -> Iterator[None]:
    """A test that measures says where to: what one test leaves would change what another compiles."""
    yield
    if os.environ.get("XDG_CACHE_HOME") == os.environ[OWN]:
        left = list(user_cache().glob("records-*"))
        for file in left:
            file.unlink()
        assert not left, "the test wrote to the user's database: give it one of its own"


@pytest.fixture(autouse=True)
def documents_fit_their_schemas(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a verb prints with --json in this process is what the published schemas say."""
    printed = output.write

    def checked(text: str) -> None:
        if text.startswith(('{\n "schema"', '{"schema"')):
            check_documents(text)
        printed(text)

    monkeypatch.setattr(output, "write", checked)


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package of the tiny model."""
    return write_package(spec_of(), tmp_path_factory.mktemp("package") / "tiny.modelc").path


@pytest.fixture
def copy(package: Path, tmp_path: Path) -> Path:
    """A copy of it, to be changed."""
    return Path(shutil.copytree(package, tmp_path / "copy.modelc"))


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache in which nothing is but the timings of this machine."""
    cache = tmp_path / "cache"
    cache.mkdir(mode=0o700)
    load_target("native")
    for probed in user_cache().glob("native-*.yaml"):
        shutil.copy(probed, cache)
    monkeypatch.setenv("MODELC_CACHE", str(cache))
    return cache


@pytest.fixture
def in_brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few packages are timed, for a moment, and in few processes, which are forked: what is tested is not who is
    faster."""
    monkeypatch.setattr(engine, "started", engine.forked)
    monkeypatch.setattr(end_to_end, "THOROUGH", end_to_end.Effort(0.05, 2, 2))
    for room in (selection, any_size):
        monkeypatch.setattr(room, "HEATS", retiming.Round(2, 2))
        monkeypatch.setattr(room, "FINAL", retiming.Round(3, 3))
    monkeypatch.setattr(retiming, "FINALISTS", 1)
    monkeypatch.setattr(retiming, "ENTRANTS", 2)
    monkeypatch.setattr(diff, "ROUNDS", 2)
    monkeypatch.setattr(sys.modules["modelc.verify.bench"], "SLICES", 10)
    monkeypatch.setattr(end_to_end, "BRIEF", end_to_end.Effort(0.05, 2, 2))


@pytest.fixture
def first_finalist_wins(in_brief: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is not the untuned Candidate is taken, so that there is something to build and to compare."""
    monkeypatch.setattr(retiming, "LEVEL", 1e9)
    for room in (selection, any_size):
        monkeypatch.setattr(room, "finalists", lambda times, fresh: [1] if len(times) > 1 else [])
        monkeypatch.setattr(room, "winner", lambda times, fresh: min(1, len(times) - 1))


@pytest.fixture
def in_process(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs main() of a script with arguments in this process, which has imported it already."""

    def run(main: Callable[[], int | None], *arguments: object) -> subprocess.CompletedProcess[str]:
        monkeypatch.setattr("sys.argv", [main.__module__, *map(str, arguments)])
        capsys.readouterr()
        said: object = None
        try:
            code = main() or 0
        except SystemExit as end:
            said, code = (end.code, 1) if isinstance(end.code, str) else ("", end.code or 0)
        found = capsys.readouterr()
        return subprocess.CompletedProcess([main.__module__], int(code), found.out, f"{found.err}{said or ''}")

    return run


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Runs a command line in this process: (exit code, stdout, stderr)."""

    def call(*arguments: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as stop:
            main([os.fspath(x) if isinstance(x, Path) else str(x) for x in arguments])
        said = capsys.readouterr()
        assert "Traceback" not in said.err
        return int(stop.value.code or 0), said.out, said.err

    return call
