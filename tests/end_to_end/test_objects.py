"""Objects of C sources in the user's cache: found again, never wrong, and no obstacle."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from repository import ROOT
from tiny_package import NATIVE_TRIPLE, spec_of

from modelc.measure import runner
from modelc.package import emulate, objects, write_package
from modelc.package.objects import Sources, objects_of
from modelc.package.toolchain import Toolchain, find_toolchain
from modelc.scratch import user_cache


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of the test's own, which is not there yet."""
    monkeypatch.setenv("MODELC_CACHE", str(tmp_path / "cache"))
    forget()
    return tmp_path / "cache"


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The sources that are compiled from now on."""
    names: list[str] = []
    compile_ = Toolchain.compile

    def counted(toolchain: Toolchain, arguments: Sequence[str], folder: Path) -> None:
        if "-c" in arguments:
            names.append(arguments[arguments.index("-c") + 1])
        compile_(toolchain, arguments, folder)

    monkeypatch.setattr(Toolchain, "compile", counted)
    return names


@pytest.fixture
def sources(tmp_path: Path) -> Sources:
    (tmp_path / "own").mkdir()
    (tmp_path / "system").mkdir()
    (tmp_path / "own/three.c").write_text(
        '#include "own.h"\n#include <size.h>\nint three(void) { return OWN + SIZE; }\n'
    )
    (tmp_path / "own/own.h").write_text("#define OWN 1\n")
    (tmp_path / "system/size.h").write_text("#define SIZE 2\n")
    flags = ("-O2", "-isystem", str(tmp_path / "system"))
    return Sources((tmp_path / "own/three.c",), (tmp_path / "own/own.h",), flags)


def forget() -> None:
    """As another process begins."""
    for remembered in (objects.objects_of, objects.linked, objects._compiler):
        remembered.cache_clear()


def again(sources: Sources) -> dict[str, bytes]:
    """The objects, as another process has them."""
    forget()
    return dict(objects_of(find_toolchain(NATIVE_TRIPLE), sources))


def entries(folder: Path) -> list[Path]:
    return sorted(folder.glob("objects-*"))


def test_another_process_compiles_nothing(cache: Path, compiled: list[str], sources: Sources) -> None:
    first = again(sources)
    assert compiled == ["three.c"] and first.keys() == {"three.o"}
    assert again(sources) == first and compiled == ["three.c"]
    assert cache.stat().st_mode & 0o777 == 0o700 and len(entries(cache)) == 1
    assert sorted(cache.iterdir()) == entries(cache)


@pytest.mark.parametrize("place", ["own/three.c", "own/own.h", "system/size.h"])
def test_a_changed_source_or_header_is_compiled(
    tmp_path: Path, compiled: list[str], sources: Sources, place: str
) -> None:
    first = again(sources)
    text = (tmp_path / place).read_text()
    (tmp_path / place).write_text(text.replace("OWN + SIZE", "OWN - SIZE").replace("1", "100").replace("2", "200"))
    assert again(sources) != first and len(compiled) == 2


def test_other_flags_and_another_version_of_modelc_are_compiled(
    cache: Path, compiled: list[str], sources: Sources, monkeypatch: pytest.MonkeyPatch
) -> None:
    again(sources)
    again(replace(sources, flags=(*sources.flags, "-fPIC")))
    monkeypatch.setenv("CPATH", "/usr/local/include")
    again(sources)
    monkeypatch.setattr(objects, "__version__", "0.0.0")
    again(sources)
    assert len(compiled) == len(entries(cache)) == 4


def test_another_compiler_compiles(
    tmp_path: Path, cache: Path, compiled: list[str], sources: Sources, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrapper = tmp_path / "wrapper"
    monkeypatch.setenv("CC", str(wrapper))
    for text in ("exec cc -g0 $*", "exec cc -O1 $*", "[ $1 = --version ] && exec echo 12.3 || exec cc -O1 $*"):
        wrapper.write_text(f"#!/bin/sh\n{text}\n")
        wrapper.chmod(0o755)
        again(sources)
    assert len(compiled) == len(entries(cache)) == 3


def test_what_depends_on_the_machine_or_on_an_unknown_compiler_is_not_kept(
    tmp_path: Path, cache: Path, compiled: list[str], sources: Sources, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CC", "cc -march=native")
    again(sources)
    (tmp_path / "wrapper").write_text("#!/bin/sh\n[ $1 != --version ] && exec cc $*\n")
    (tmp_path / "wrapper").chmod(0o755)
    monkeypatch.setenv("CC", str(tmp_path / "wrapper"))
    again(sources)
    assert len(compiled) == 2 and not cache.exists()


@pytest.mark.parametrize("damage", ["cut", "changed", "empty", "a folder"])
def test_a_damaged_entry_is_made_again(cache: Path, compiled: list[str], sources: Sources, damage: str) -> None:
    first = again(sources)
    (entry,) = entries(cache)
    data = entry.read_bytes()
    if damage == "a folder":
        entry.unlink()
        entry.mkdir()
    else:
        damaged = {"cut": data[:-1], "changed": data[:-9] + bytes([data[-9] ^ 1]) + data[-8:], "empty": b""}
        entry.write_bytes(damaged[damage])
    assert again(sources) == first and len(compiled) == 2
    if damage != "a folder":
        assert entry.read_bytes() == data
        assert again(sources) == first and len(compiled) == 2


def test_a_cache_that_cannot_be_written_is_no_error(
    compiled: list[str], sources: Sources, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = again(sources)
    monkeypatch.setenv("MODELC_CACHE", "/proc/nowhere")
    assert again(sources) == again(sources) == first and len(compiled) == 3


@pytest.mark.parametrize("mode", [0o770, 0o702, 0o777])
def test_a_cache_that_others_can_write_to_is_not_used(
    cache: Path, compiled: list[str], sources: Sources, mode: int
) -> None:
    again(sources)
    (entry,) = entries(cache)
    before = entry.stat().st_mtime_ns
    cache.chmod(mode)
    again(sources)
    assert len(compiled) == 2 and entry.stat().st_mtime_ns == before
    entry.unlink()
    again(sources)
    assert len(compiled) == 3 and not entries(cache)


def test_the_cache_of_somebody_else_is_not_used(
    cache: Path, compiled: list[str], sources: Sources, monkeypatch: pytest.MonkeyPatch
) -> None:
    again(sources)
    own = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: own + 1)
    again(sources)
    assert len(compiled) == 2


def test_what_was_not_used_for_longest_goes(
    cache: Path, compiled: list[str], sources: Sources, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = ["-DA", "-DB", "-DC"]
    kinds = [replace(sources, flags=(*sources.flags, flag)) for flag in flags]
    for age, kind in zip((300, 200), kinds, strict=False):
        again(kind)
        (new,) = (path for path in entries(cache) if path.stat().st_mtime > path.stat().st_ctime - 100)
        os.utime(new, (new.stat().st_ctime - age,) * 2)
    again(kinds[0])  # which was the oldest
    monkeypatch.setattr(objects, "MOST_BYTES", 2 * max(path.stat().st_size for path in entries(cache)))
    again(kinds[2])
    assert len(compiled) == 3 and len(entries(cache)) == 2
    again(kinds[0])
    again(kinds[2])
    assert len(compiled) == 3
    again(kinds[1])
    assert len(compiled) == 4


def test_the_environment_says_where_the_cache_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert user_cache() == tmp_path / "cache"
    monkeypatch.delenv("MODELC_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert user_cache() == tmp_path / "xdg/modelc"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert user_cache() == tmp_path / ".cache/modelc"


def test_processes_may_write_at_once(cache: Path, compiled: list[str], sources: Sources) -> None:
    program = (
        "import hashlib\n"
        "from pathlib import Path\n"
        "from modelc.package.objects import Sources, objects_of\n"
        "from modelc.package.toolchain import find_toolchain\n"
        f"sources = Sources({tuple(map(str, sources.files))}, {tuple(map(str, sources.headers))}, {sources.flags})\n"
        "paths = Sources(tuple(map(Path, sources.files)), tuple(map(Path, sources.headers)), sources.flags)\n"
        f"objects = objects_of(find_toolchain({NATIVE_TRIPLE!r}), paths)\n"
        "print(hashlib.sha256(objects['three.o']).hexdigest())\n"
    )
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    processes = [
        subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, env=env) for _ in range(4)
    ]
    assert len({process.communicate()[0] for process in processes}) == 1
    assert [process.returncode for process in processes] == [0] * 4
    assert len(entries(cache)) == 1 and sorted(cache.iterdir()) == entries(cache)
    again(sources)
    assert not compiled


def test_packages_are_the_same_with_the_cache_and_without(
    tmp_path: Path, compiled: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    packages = []
    for name, place in (("cold", "c"), ("warm", "c"), ("none", "/proc/nowhere")):
        monkeypatch.setenv("MODELC_CACHE", str(tmp_path / place))
        forget()
        package = write_package(spec_of(), tmp_path / f"{name}.modelc").path
        packages.append({path.name: path.read_bytes() for path in package.iterdir()})
    assert packages[0] == packages[1] == packages[2]
    assert compiled.count("modelc_host.c") == 2


def test_programs_that_run_kernels_and_packages_are_compiled_once(cache: Path, compiled: list[str]) -> None:
    for _ in range(2):
        forget()
        for program in (emulate._runner(NATIVE_TRIPLE), runner.program(NATIVE_TRIPLE)):
            assert os.access(program, os.X_OK)
    assert compiled.count("run_main.c") == compiled.count("runner.c") == 1
