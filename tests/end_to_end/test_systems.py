"""Packages for systems other than Linux with glibc: run where something here runs them, else inspected."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from small_model import save
from tiny_package import COLUMNS, check_outputs, inputs_of, object_for, plan_of, skip_without_tools, spec_of

from modelc.cli import main
from modelc.errors import PackageError, ToolchainError
from modelc.package import Form, emulator, find_toolchain, machine_of, read_package, run_emulated, write_package
from modelc.package.elf import members
from modelc.package.foreign import check_foreign, symbols_of
from modelc.package.header import exported_names, module_functions
from modelc.package.memory import memory_of

FOREIGN = {
    "wasm32-wasi": ("so", "a", "o"),
    "x86_64-windows-gnu": ("so", "a"),
    "aarch64-macos": ("so", "a", "o"),
    "x86_64-macos": ("a",),
    "aarch64-linux-android": ("a", "o"),
}
MUSL = ["x86_64-linux-musl", "aarch64-linux-musl", "armv7l-linux-musleabihf"]

needs_zig = pytest.mark.skipif(importlib.util.find_spec("ziglang") is None, reason="ziglang is not installed")
needs_node = pytest.mark.skipif(not shutil.which("node"), reason="Node.js is not installed")


def package_for(triple: str, folder: Path, emit: tuple[str, ...] = ()) -> Path:
    form = Form.of("net", "face", emit, triple=triple)
    plans = tuple(plan_of(rows, "face_") for rows in (40, 7))
    spec = spec_of(triple, form=form, variants=plans, objects={"b": object_for(triple, "face_")})
    return write_package(spec, folder / "p.modelc").path


@needs_zig
@pytest.mark.parametrize("triple", FOREIGN)
def test_every_form_of_a_system_is_what_its_format_says(tmp_path: Path, triple: str) -> None:
    path = package_for(triple, tmp_path, FOREIGN[triple])
    package = read_package(path, check=True)
    linked, system = package.manifest.linked, machine_of(triple).system
    form, number = linked.form, machine_of(triple).object_machine
    assert form.on is system and form.freestanding and not (path / "params.bin").exists()
    assert {name.removeprefix("face_") for name in linked.calls} >= {"expf", "memcpy"}
    for kind in FOREIGN[triple]:
        data = (path / form.file_of(kind)).read_bytes()
        inner = list(members(data)) if kind == "a" else [data]
        if system.objects == "ELF":
            assert all(member[:4] == b"\x7fELF" for member in inner)
            continue
        assert inner
        for member in inner:
            check_foreign(member, kind, system.objects, number)
    if "so" in FOREIGN[triple]:
        assert set(form.beside) <= {p.name for p in path.iterdir()}
    assert memory_of(package.manifest, path).code > 1000
    with pytest.raises(ToolchainError, match=r"^the kernel object 'b' is") as wrong:
        write_package(
            spec_of(triple, form=form, variants=(plan_of(7),), objects={"b": object_for("x86_64-linux-gnu")}),
            tmp_path / "q",
        )
    assert "instead of" in str(wrong.value) or "not a" in str(wrong.value)


@needs_zig
def test_windows_and_macos_give_the_functions_of_the_header(tmp_path: Path) -> None:
    path = package_for("x86_64-windows-gnu", tmp_path, ("so", "a"))
    names = set(exported_names(read_package(path).manifest.linked.form))
    objects = [m for m in members((path / "libface.a").read_bytes()) if m[:2] == b"\x64\x86"]
    assert names <= set().union(*(symbols_of(m, "a member").defined for m in objects))
    library = (path / "face.dll").read_bytes()
    assert all(name.encode() + b"\0" in library for name in names) and b"ucrtbase" in library.lower()


@needs_zig
@needs_node
def test_a_module_runs_in_node(tmp_path: Path) -> None:
    path = package_for("wasm32-wasi", tmp_path, ("so",))
    assert set(read_package(path).manifest.linked.calls) <= module_functions()
    for variant, rows in enumerate((40, 7)):
        check_outputs(run_emulated(path, inputs_of(rows), variant).outputs, inputs_of(rows))
    program = """
        const { load } = await import(process.argv[1]);
        const model = await load(), x = new Float32Array(40 * 64).fill(1);
        const { y, total } = model.run({ x, mask: Uint8Array.of(1, 0, 1, 1, 0) });
        console.log(JSON.stringify([model.inputs, y.length, Number(total[0]), model.metadata.name]));
        try { model.run({ x }); } catch (error) { console.log(error.message); }
    """
    command = ["node", "--input-type=module", "-e", program, str(path / "face.mjs")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    said, refused = done.stdout.splitlines()
    inputs, length, total, name = json.loads(said)
    assert [(t["name"], t["dtype"], t["shape"]) for t in inputs] == [("x", "float32", [40, 64]), ("mask", "bool", [5])]
    assert (length, total, name) == (40 * COLUMNS, 3, "tiny")
    assert refused == "input 'mask' is missing; expected Uint8Array of 5 (5)"


def small(folder: Path) -> Path:
    from onnx import helper

    weights = {"w": np.random.default_rng(0).standard_normal((16, 8)).astype(np.float32)}
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Softmax", ["h"], ["y"])]
    return save(folder / "net.onnx", nodes, {"x": [4, 16]}, {"y": [4, 8]}, weights)


def ended(code: int, *arguments: object) -> None:
    with pytest.raises(SystemExit) as ending:
        main([str(argument) for argument in arguments])
    assert ending.value.code == code


@needs_zig
@needs_node
def test_a_compiled_module_is_verified_in_node(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = tmp_path / "net.modelc"
    ended(0, "compile", small(tmp_path), "--target", "wasm32-simd", "-o", made, "--no-bench")
    assert " right on " in capsys.readouterr().out
    assert read_package(made).manifest.linked.on == "WebAssembly" and (made / "net.mjs").exists()


@needs_zig
@pytest.mark.slow  # ziglang compiles musl first
@pytest.mark.parametrize("triple", MUSL)
def test_musl_is_linked_statically(tmp_path: Path, triple: str) -> None:
    skip_without_tools(triple)
    path = package_for(triple, tmp_path)
    linked = read_package(path, check=True).manifest.linked
    assert (linked.libc, linked.emit) == ("musl", ("a",))
    check_outputs(run_emulated(path, inputs_of(7), variant=1).outputs, inputs_of(7))


@pytest.mark.parametrize(
    ("target", "flags", "sentence"),
    [
        ("x86-64-v3-windows", ["--emit", "o"], "--emit o is no form of a package for Windows, which has so, a"),
        ("aarch64-android", ["--emit", "so"], "Android's own C library, which comes with its NDK alone"),
        ("apple-m1", ["--libc", "musl"], "--libc musl is for Linux"),
        ("apple-m1", [], "programs for macOS are not run on this machine; to have the package unverified"),
    ],
)
def test_what_a_system_does_not_have_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], target: str, flags: list[str], sentence: str
) -> None:
    ended(2, "compile", small(tmp_path), "--target", target, *flags, "-o", tmp_path / "p.modelc")
    assert sentence in capsys.readouterr().err and not (tmp_path / "p.modelc").exists()


def test_systems_are_asked_for_by_what_they_have() -> None:
    assert Form.of("net", triple="aarch64-linux-android").emit == ("a",)
    assert Form.of("net", triple="x86_64-windows-gnu").library == "net.dll"
    assert Form.of("net", triple="aarch64-macos").library == "libnet.dylib"
    assert Form.of("net", triple="wasm32-wasi").beside == ("net.mjs",)
    assert Form.of("net", triple="x86_64-linux-musl").emit == ("a",)
    with pytest.raises(PackageError, match="--libc musl is for Linux"):
        Form.of("net", libc="musl", triple="wasm32-wasi")
    with pytest.raises(ToolchainError, match="cannot link for 'x86_64-freebsd'"):
        find_toolchain("x86_64-freebsd")
    with pytest.raises(ToolchainError, match="programs for Windows are not run"):
        emulator("x86_64-windows-gnu")
