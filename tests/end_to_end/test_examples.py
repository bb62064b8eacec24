"""The examples are built and run in a folder with nothing but a package: C, C++, Rust, Python, JavaScript."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from repository import ROOT
from tiny_package import COLUMNS, NATIVE_TRIPLE, object_for, plan_of, skip_without_tools, spec_of

from modelc.package import (
    Argument,
    Form,
    Plan,
    Step,
    TensorInfo,
    emulator,
    find_toolchain,
    read_package,
    run_emulated,
    write_package,
)

EXAMPLES = ROOT / "examples"
CARGO = shutil.which("cargo") or shutil.which("cargo", path=str(Path.home() / ".cargo/bin"))
X = (np.arange(COLUMNS) * 37 % 64 - 20).astype(np.float32)


def net(folder: Path, triple: str = NATIVE_TRIPLE, **form: object) -> Path:
    """A package of y = x * w."""
    row = (1, COLUMNS)
    arguments = (Argument("input", 0), Argument("params", offset=64), Argument("output", 0))
    plan = Plan(
        inputs=(TensorInfo("x", "float32", row),),
        outputs=(TensorInfo("y", "float32", row),),
        steps=(Step("scale", "net_scale", arguments, 1),),
    )
    asked = Form.of("net", "net", triple=triple, **form)  # type: ignore[arg-type]
    spec = spec_of(triple, form=asked, variants=(plan,), objects={"b": object_for(triple, "net_")})
    return write_package(spec, folder / "net.modelc").path


def classified(command: list[str | Path], folder: Path, **options: object) -> None:
    X.tofile(folder / "input.bin")
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, **options)  # type: ignore[call-overload]
    assert done.returncode == 0, done.stderr
    y = X * np.linspace(0.5, 2, COLUMNS, dtype=np.float32)
    assert done.stdout.split() == [str(int(y.argmax())), f"{y.max():.6f}"]


@pytest.mark.parametrize(
    ("compiler", "source", "flag"), [("cc", "c/classify.c", "-std=c11"), ("c++", "cpp/classify.cpp", "-std=c++17")]
)
def test_c_and_cpp(tmp_path: Path, compiler: str, source: str, flag: str) -> None:
    if not shutil.which(compiler):
        pytest.skip(f"there is no {compiler}")
    net(tmp_path, emit=("a",))
    shutil.copy(EXAMPLES / source, tmp_path)
    words = [
        compiler,
        flag,
        "-O2",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-Inet.modelc",
        Path(source).name,
        "net.modelc/libnet.a",
    ]
    subprocess.run([*words, "-lm", "-pthread", "-o", "classify"], cwd=tmp_path, check=True)
    classified(["./classify", "net.modelc", "input.bin"], tmp_path)


@pytest.mark.skipif(not CARGO, reason="Rust is not installed")
def test_rust(tmp_path: Path) -> None:
    """The package is a crate; nothing is loaded from a registry."""
    net(tmp_path, emit=("rust",))
    shutil.copytree(EXAMPLES / "rust", tmp_path, dirs_exist_ok=True)
    env = {
        **os.environ,
        "PATH": f"{Path(str(CARGO)).parent}{os.pathsep}{os.environ['PATH']}",
        "RUSTFLAGS": "-Dwarnings",
    }
    classified([str(CARGO), "run", "-q", "--offline", "--", "net.modelc", "input.bin"], tmp_path, env=env)


BARE = r"""
fn main() {
    let mut room = vec![0u8; net::memory_size() + 64];
    let start = room.as_ptr().align_offset(64);
    assert_eq!(net::Model::init(&mut room[..64]).unwrap_err().status, 1);
    let mut model = net::Model::init(&mut room[start..]).unwrap();
    let x = std::fs::read(std::env::args().nth(1).unwrap()).unwrap();
    let mut y = vec![0f32; model.output(0, 0).bytes / 4];
    let shape = model.input(0, 0).shape;
    let variant = model.run_shaped([shape], [&x], [net::bytes_of_mut(&mut y)]).unwrap();
    assert_eq!(model.output_shape(variant, 0).unwrap().iter().product::<i64>(), y.len() as i64);
    assert_eq!(model.profile(variant, 0).unwrap().calls, 0); // there is no clock
    assert!(model.metadata().starts_with('{'));
    let best = (0..y.len()).max_by(|&a, &b| y[a].total_cmp(&y[b])).unwrap();
    println!("{best} {:.6}", y[best]);
}
"""


@pytest.mark.skipif(not CARGO, reason="Rust is not installed")
def test_rust_without_a_system(tmp_path: Path) -> None:
    path = net(tmp_path, emit=("rust",), freestanding=True)
    assert read_package(path, check=True).manifest.linked.emit == ("a", "rust")
    rustc = str(Path(str(CARGO)).with_name("rustc"))
    env = {**os.environ, "PATH": f"{Path(str(CARGO)).parent}{os.pathsep}{os.environ['PATH']}"}
    command = [rustc, "-Dwarnings", "--edition=2021"]
    subprocess.run([*command, "--crate-type=rlib", "net.modelc/net.rs"], cwd=tmp_path, check=True, env=env)
    (tmp_path / "classify.rs").write_text(BARE)
    libraries = ["--extern", "net=libnet.rlib", "-L", "net.modelc", "-l", "static=net", "-l", "m"]
    subprocess.run([*command, "classify.rs", *libraries], cwd=tmp_path, check=True, env=env)
    classified(["./classify", "input.bin"], tmp_path)
    assert "#![no_std]" in (path / "net.rs").read_text() and "fn init" in (path / "net.rs").read_text()


def test_python(tmp_path: Path) -> None:
    """Without modelc, in a Python that has NumPy alone."""
    net(tmp_path)
    shutil.copy(EXAMPLES / "python/classify.py", tmp_path)
    classified([sys.executable, "classify.py", "net.modelc", "input.bin"], tmp_path)


@pytest.mark.skipif(not shutil.which("node"), reason="Node.js is not installed")
@pytest.mark.skipif(importlib.util.find_spec("ziglang") is None, reason="ziglang is not installed")
def test_javascript(tmp_path: Path) -> None:
    net(tmp_path, "wasm32-wasi")
    shutil.copy(EXAMPLES / "javascript/classify.mjs", tmp_path)
    classified(["node", "classify.mjs", "net.modelc", "input.bin"], tmp_path)


def checksum(data: bytes) -> str:
    total = 0xCBF29CE484222325
    for byte in data:
        total = (total ^ byte) * 0x100000001B3 % 2**64
    return f"{total:016x}"


@pytest.mark.parametrize("triple", ["aarch64-linux-gnu"])
def test_two_models_in_one_static_program(tmp_path: Path, triple: str) -> None:
    """It gives the bits that the two packages give."""
    skip_without_tools(triple)
    wanted, words = [], []
    for prefix, rows, top in (("face", 40, 2), ("ocr", 7, 3)):
        form = Form.of("net", prefix, ("a",), embed_params=True)
        params = ((64, np.linspace(0.5, top, COLUMNS, dtype=np.float32)),)
        parts = {"variants": (plan_of(rows, f"{prefix}_"),), "objects": {"b": object_for(triple, f"{prefix}_")}}
        path = write_package(spec_of(triple, form=form, params=params, **parts), tmp_path / f"{prefix}.modelc").path
        numbers = (np.arange(rows * COLUMNS) * 7919 % 1000).astype(np.float32) / np.float32(500) - np.float32(1)
        feeds = {"x": numbers.reshape(rows, COLUMNS), "mask": np.zeros(5, bool)}
        outputs = run_emulated(path, feeds).outputs
        wanted += [f"{prefix} {name} {checksum(array.tobytes())}" for name, array in outputs.items()]
        words += [f"-I{path}", str(path / f"lib{prefix}.a")]
    shutil.copy(EXAMPLES / "c/two_models.c", tmp_path)
    flags = ["-O2", "-static", "-Wall", "-Wextra", "-Werror", "two_models.c"]
    find_toolchain(triple).compile([*flags, *words, "-lm", "-pthread", "-o", "two_models"], tmp_path)
    done = subprocess.run([*emulator(triple), "./two_models"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == wanted
