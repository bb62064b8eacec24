"""What a package is made as: names, forms, C libraries; several models in one program."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
from small_model import save
from tiny_package import (
    COLUMNS,
    NATIVE_TRIPLE,
    check_outputs,
    inputs_of,
    object_for,
    plan_of,
    skip_without_tools,
    spec_of,
)

from modelc.cli import main
from modelc.errors import PackageError, ToolchainError
from modelc.package import Form, emulator, find_toolchain, read_package, run_emulated, write_package
from modelc.package.elf import shared_library
from modelc.package.form import prefix_of
from modelc.package.header import exported_names
from modelc.package.memory import memory_of
from modelc.runtime import ModelError, load

TRIPLES = ["x86_64-linux-gnu", "aarch64-linux-gnu", "armv7l-linux-gnueabihf", "riscv64-linux-gnu"]
WEIGHTS = (np.linspace(0.5, 2, COLUMNS, dtype=np.float32), np.linspace(3, 4, COLUMNS, dtype=np.float32))

PROGRAM = r"""
#include <stdio.h>
#include <stdlib.h>
#include "face.h"
#include "ocr.h"

static float x[40 * 64], y[2][40 * 64];

static int run(const modelc_api *api, modelc_handle *model, float *result) {
    static const uint8_t mask[5] = {1, 0, 1, 1, 0};
    int64_t total = 0;
    const void *inputs[] = {x, mask};
    void *outputs[] = {result, &total};
    if (!model || api->run(model, 0, inputs, outputs)) {
        fprintf(stderr, "%s\n", api->last_error());
        return 1;
    }
    return 0;
}

int main(int argc, char **argv) {
    modelc_handle *face = NULL, *ocr = NULL;
    if (argc != 4) return 2;
#ifdef BARE
    void *memory[2];
    if (posix_memalign(&memory[0], 64, face_memory_size())) return 3;
    if (posix_memalign(&memory[1], 64, ocr_memory_size())) return 3;
    face = face_init(memory[0]);
    ocr = ocr_init(memory[1]);
#else
    if (face_open(argv[1], NULL, &face)) fprintf(stderr, "%s\n", face_last_error());
    if (ocr_open(argv[2], NULL, &ocr)) fprintf(stderr, "%s\n", ocr_last_error());
#endif
    for (int i = 0; i < 40 * 64; i++) x[i] = (float)(i * 7919 % 1000) / 500 - 1;
    FILE *file = fopen(argv[3], "wb");
    if (run(face_api(), face, y[0]) || run(ocr_api(), ocr, y[1]) || fwrite(y, sizeof y, 1, file) != 1) return 1;
    return fclose(file);
}
"""


def two(folder: Path, triple: str = NATIVE_TRIPLE, **form: object) -> list[Path]:
    """Packages of two models with the same kernels, of different weights."""
    made = []
    for prefix, weights in zip(("face", "ocr"), WEIGHTS, strict=True):
        asked = Form.of("net", prefix, **form)  # type: ignore[arg-type]
        params = ((0, np.arange(3, dtype=np.int8)), (64, weights))
        variants = (plan_of(40, f"{prefix}_"), plan_of(7, f"{prefix}_"))
        parts = {"variants": variants, "objects": {"b": object_for(triple, f"{prefix}_")}, "params": params}
        made.append(write_package(spec_of(triple, form=asked, **parts), folder / f"{prefix}.modelc").path)
    return made


def results(program: Path, packages: list[Path], folder: Path, before: tuple[str, ...] = ()) -> list[np.ndarray]:
    done = subprocess.run([*before, program, *packages, folder / "y"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return list(np.fromfile(folder / "y", np.float32).reshape(2, 40, 64))


def wanted(packages: list[Path], emulated: bool = False) -> list[np.ndarray]:
    """What each package gives alone."""
    x = (np.arange(40 * 64) * 7919 % 1000).astype(np.float32) / np.float32(500) - np.float32(1)
    feeds = {"x": x.reshape(40, 64), "mask": np.array([1, 0, 1, 1, 0], bool)}
    if emulated:
        return [run_emulated(package, feeds).outputs["y"] for package in packages]
    return [load(package).run(feeds)["y"] for package in packages]


def same(one: list[np.ndarray], other: list[np.ndarray]) -> None:
    assert [y.tobytes() for y in one] == [y.tobytes() for y in other]
    assert not np.array_equal(one[0], one[1])


# ---- two models in one program ----


def test_two_models_are_linked_dynamically(tmp_path: Path) -> None:
    packages = two(tmp_path)
    (tmp_path / "app.c").write_text(PROGRAM)
    found = [part for package in packages for part in ("-I", str(package), f"-L{package}", f"-Wl,-rpath,{package}")]
    find_toolchain(NATIVE_TRIPLE).compile(
        ["-Wall", "-Werror", "app.c", *found, "-lface", "-locr", "-o", "app"], tmp_path
    )
    same(results(tmp_path / "app", packages, tmp_path), wanted(packages))


def test_two_models_are_loaded_by_one_program(tmp_path: Path) -> None:
    """With RTLD_GLOBAL, where names that are equal would be taken from the first."""
    code = "import ctypes, sys, modelc.runtime as r, numpy as n\n" + (
        "for p in sys.argv[1:3]: ctypes.CDLL(p + '/lib' + p.split('/')[-1].split('.')[0] + '.so', ctypes.RTLD_GLOBAL)\n"
        "x = (n.arange(2560) * 7919 % 1000).astype('f4').reshape(40, 64) / n.float32(500) - n.float32(1)\n"
        "m = n.array([1, 0, 1, 1, 0], bool)\n"
        "n.stack([r.load(p).run({'x': x, 'mask': m})['y'] for p in sys.argv[1:3]]).tofile(sys.argv[3])\n"
    )
    packages = two(tmp_path)
    subprocess.run([sys.executable, "-c", code, *packages, tmp_path / "y"], check=True)
    same(list(np.fromfile(tmp_path / "y", np.float32).reshape(2, 40, 64)), wanted(packages))


@pytest.mark.parametrize("triple", [NATIVE_TRIPLE, "aarch64-linux-gnu"])
@pytest.mark.parametrize(
    "form",
    [{"emit": ("so", "a"), "embed_params": True}, {"emit": ("o",), "freestanding": True}],
    ids=["hosted", "bare"],
)
@pytest.mark.sweep(2)
def test_two_models_are_linked_statically(tmp_path: Path, triple: str, form: dict[str, object]) -> None:
    skip_without_tools(triple)
    packages = two(tmp_path, triple, **form)
    (tmp_path / "app.c").write_text(PROGRAM)
    bare = ["-DBARE"] * ("freestanding" in form)
    code = [str(p / (f"{p.stem}.o" if bare else f"lib{p.stem}.a")) for p in packages]
    folders = [part for package in packages for part in ("-I", str(package))]
    arguments = ["-static", "-Wall", "-Werror", *bare, *folders, "app.c", *code, "-lm", "-pthread", "-o", "app"]
    find_toolchain(triple).compile(arguments, tmp_path)
    same(results(tmp_path / "app", packages, tmp_path, emulator(triple)), wanted(packages, emulated=True))


# ---- forms ----


@pytest.mark.parametrize("triple", TRIPLES)
def test_needs_no_newer_glibc_than_its_floor(tmp_path: Path, triple: str) -> None:
    skip_without_tools(triple)
    package = write_package(spec_of(triple), tmp_path / "p").path
    library = shared_library((package / "libtiny.so").read_bytes(), "it")
    assert library.soname == "libtiny.so" and library.glibc <= ((2, 17) if triple[0] in "xa" else (2, 28))
    linked = read_package(package).manifest.linked
    assert (linked.libc, linked.needed) == ("gnu", library.needed) and linked.compiler
    assert linked.libc_version == ".".join(map(str, library.glibc)) and linked.libc_version.startswith("2.")
    if shutil.which("readelf"):
        text = subprocess.run(["readelf", "-V", package / "libtiny.so"], capture_output=True, text=True).stdout
        versions = {tuple(map(int, v.split("."))) for v in re.findall(r"GLIBC_([\d.]+)", text)}
        assert max(versions) == library.glibc


@pytest.mark.parametrize("triple", TRIPLES)
def test_free_standing_code_calls_no_system(tmp_path: Path, triple: str) -> None:
    skip_without_tools(triple)
    form = Form.of("net", "bare", ("a", "o"), freestanding=True)
    package = write_package(spec_of(triple, form=form), tmp_path / "p").path
    assert sorted(p.name for p in package.iterdir()) == [
        *("bare.h", "bare.hpp", "bare.o", "bare.pc", "bareConfig.cmake", "choices.json", "example.c", "libbare.a"),
        "manifest.json",
    ]
    linked = read_package(package, check=True).manifest.linked
    assert {name for name in linked.calls if not name.startswith("__aeabi")} == {"expf", "memcpy", "memset", "sqrtf"}
    inputs = inputs_of(7)
    check_outputs(run_emulated(package, inputs, variant=1).outputs, inputs)
    memory = memory_of(read_package(package).manifest, package)
    assert (memory.arena, memory.scratch, memory.states) == (40 * 64 * 4 + 160, 256, 0) and memory.code > 1000
    with pytest.raises(ModelError, match=r"no shared library to load: it was compiled with --emit a, o; add so"):
        load(package)


@pytest.mark.parametrize("triple", TRIPLES[:2])
def test_free_standing_code_names_the_feature_that_a_cpu_lacks(tmp_path: Path, triple: str) -> None:
    skip_without_tools(triple)
    there = {"x86_64": "sse4.2", "aarch64": "neon"}[triple.partition("-")[0]]
    form = Form.of("net", "bare", ("a",), freestanding=True)
    package = write_package(spec_of(triple, form=form, features=(there,)), tmp_path / "p").path
    check_outputs(run_emulated(package, inputs_of(7), variant=1).outputs, inputs_of(7))
    package = write_package(spec_of(triple, form=form, features=(there, "quantum-avx")), tmp_path / "q").path
    with pytest.raises(PackageError, match="needs the CPU feature 'quantum-avx', which is not known"):
        run_emulated(package, inputs_of(7), variant=1)


def test_embedded_parameters_open_no_file(tmp_path: Path) -> None:
    package = write_package(spec_of(form=Form.of("net", "own", embed_params=True)), tmp_path / "p").path
    manifest = read_package(package, check=True).manifest
    assert (
        not (package / "params.bin").exists()
        and manifest.params_bytes == 320
        and manifest.params == ((0, 3), (64, 256))
    )
    with load(package, check=True) as model:
        check_outputs(model.run(inputs_of()), inputs_of())
    code = (
        "import ctypes, sys\nlibrary, handle = ctypes.CDLL(sys.argv[1]), ctypes.c_void_p()\n"
        "print(library.own_open(None, None, ctypes.byref(handle)))\n"
    )
    alone = shutil.copy(package / "libown.so", tmp_path / "alone.so")
    assert subprocess.run([sys.executable, "-c", code, alone], capture_output=True, text=True).stdout == "0\n"


def test_the_names_of_a_static_library_are_the_models_own(tmp_path: Path) -> None:
    package = write_package(spec_of(form=Form.of("net", "face", ("a",), True)), tmp_path / "p").path
    text = subprocess.run(["nm", "-g", "--defined-only", package / "libface.a"], capture_output=True, text=True).stdout
    names = {line.split()[-1] for line in text.splitlines() if len(line.split()) == 3}
    kernels = {"scale", "row_norm", "normalise", "count", "__extendhfsf2"}  # the test's own, which have no prefix
    assert set(exported_names(Form(prefix="face"))) <= names and all(n.startswith("face_") for n in names - kernels)


@pytest.mark.skipif(not shutil.which("c++"), reason="no C++ compiler")
def test_headers_are_cpp_and_lie_beside_each_other(tmp_path: Path) -> None:
    for package in two(tmp_path):
        shutil.copy(package / f"{package.name.split('.')[0]}.h", tmp_path)
    (tmp_path / "a.cpp").write_text('#include "face.h"\n#include "ocr.h"\nauto *a = face_api, *b = ocr_api;\n')
    subprocess.run(["c++", "-Wall", "-Werror", "-fsyntax-only", "a.cpp"], cwd=tmp_path, check=True)


@pytest.mark.parametrize(
    "form", [{"emit": ("a",)}, {"emit": ("o",), "embed_params": True}, {"freestanding": True}], ids=["a", "o", "bare"]
)
def test_the_example_is_built_as_it_says(tmp_path: Path, form: dict[str, object]) -> None:
    package = write_package(spec_of(form=Form.of("net", "face", **form)), tmp_path / "p").path  # type: ignore[arg-type]
    command = next(line for line in (package / "example.c").read_text().splitlines() if "&& cc" in line)
    parts = [part.strip() for part in command.partition("cd NAME.modelc && ")[2].split("&&")]
    for part in (parts[0], parts[1].partition(" [FILE")[0]):
        done = subprocess.run(part, shell=True, cwd=package, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    assert "y[0] = 0" in done.stdout


# ---- names, and what is refused ----


def test_a_models_name_is_its_prefix() -> None:
    names = ("net", "MobileNet-v2", "resnet50.opt", "1x1", "int", "m", "c", "modelc", "日本")
    assert [prefix_of(name) for name in names] == [
        *(
            "net",
            "mobilenet_v2",
            "resnet50_opt",
            "model_1x1",
            "model_int",
            "model_m",
            "model_c",
            "model_modelc",
            "model",
        )
    ]


@pytest.mark.parametrize(
    ("form", "sentence"),
    [
        ({"prefix": "2fast"}, "begins no C name"),
        ({"prefix": "a-b"}, "begins no C name"),
        ({"prefix": "x" * 65}, "begins no C name"),
        ({"prefix": "while"}, "is a name that C, the system's libraries or modelc have taken"),
        ({"prefix": "m"}, "have taken"),
        ({"emit": ("dll",)}, "--emit dll is no form of a package; expected so, a, o, rust"),
        ({"emit": ("so",), "freestanding": True}, "has no shared library: say --emit a, o"),
        ({"libc": "glibc"}, "--libc glibc is no C library"),
        ({"libc": "musl", "freestanding": True}, "leave out --libc musl, or --freestanding"),
    ],
)
def test_forms_that_make_no_sense_are_refused(form: dict[str, object], sentence: str) -> None:
    with pytest.raises(PackageError, match=re.escape(sentence)):
        Form.of("net", **form)  # type: ignore[arg-type]


def test_compilers_of_other_machines_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ToolchainError, match=r"--libc gnu.2.5 is too old for .*: the least is gnu.2"):
        find_toolchain(NATIVE_TRIPLE, "gnu.2.5")
    with pytest.raises(ToolchainError, match="cannot run the C compiler 'no-such-cc'"):
        find_toolchain(NATIVE_TRIPLE, cc="no-such-cc")
    wrong = tmp_path / "wrong-cc"
    wrong.write_text("#!/bin/sh\necho 'this is no compiler' >&2\nexit 1\n")
    wrong.chmod(0o755)
    with pytest.raises(ToolchainError, match=r"does not compile for (.|\n)*this is no compiler"):
        find_toolchain(NATIVE_TRIPLE, cc=str(wrong))
    skip_without_tools("aarch64-linux-gnu")
    cross = find_toolchain("aarch64-linux-gnu").command[0]
    if NATIVE_TRIPLE.startswith("x86"):
        with pytest.raises(ToolchainError, match=r"what --cc .* makes is for aarch64 \(64 bits\) instead of x86_64"):
            find_toolchain(NATIVE_TRIPLE, cc=cross)
    form = Form.of("net", "tiny", ("so", "a"), cc=f"{cross} -O1", ar="ar")
    linked = read_package(write_package(spec_of("aarch64-linux-gnu", form=form), tmp_path / "p").path).manifest.linked
    assert linked.compiler.startswith(f"{cross} -O1: ") and linked.archiver == "ar"
    monkeypatch.setenv("CC", f"{cross} -O3")  # as a cross SDK sets it: for that machine, and not for this
    assert find_toolchain("aarch64-linux-gnu").command == (cross, "-O3")
    if NATIVE_TRIPLE.startswith("x86") and shutil.which("riscv64-linux-gnu-gcc"):
        assert "riscv64" in find_toolchain("riscv64-linux-gnu").command[0]


# ---- the command line ----


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from onnx import helper

    weights = {"w": np.random.default_rng(0).standard_normal((16, 8)).astype(np.float32)}
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Softmax", ["h"], ["y"])]
    return save(tmp_path_factory.mktemp("forms") / "My-Net.onnx", nodes, {"x": [4, 16]}, {"y": [4, 8]}, weights)


def said(capsys: pytest.CaptureFixture[str], *arguments: object, code: int = 0) -> str:
    with pytest.raises(SystemExit) as ended:
        main([str(a) for a in arguments])
    captured = capsys.readouterr()
    assert ended.value.code == code, captured.err
    return captured.err if code else captured.out


def test_compile_takes_the_form_and_inspect_says_it(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said(capsys, "compile", model, "-o", tmp_path / "default", "--no-verify")
    assert (tmp_path / "default/libmy_net.so").exists() and (tmp_path / "default/my_net.h").exists()
    said(capsys, "compile", model, "-o", tmp_path / "p", "--prefix", "face", "--emit", "so,a,o", "--embed-params")
    assert {"libface.so", "libface.a", "face.o", "face.h"} <= {file.name for file in (tmp_path / "p").iterdir()}
    assert "face_k_" in subprocess.run(["nm", tmp_path / "p/face.o"], capture_output=True, text=True).stdout
    description = json.loads(said(capsys, "inspect", tmp_path / "p", "--json"))
    assert description["linked"]["emit"] == ["so", "a", "o"] and description["linked"]["embed_params"]
    text = said(capsys, "inspect", tmp_path / "p")
    assert "libraries     glibc 2." in text and "  RAM  " in text and "  flash  " in text
    memory = description["memory"]
    assert (
        memory["constants"]
        == description["linked"]["embed_params"] * read_package(tmp_path / "p").manifest.params_bytes
    )
    assert memory["flash"] == (tmp_path / "p/libface.so").stat().st_size and memory["code"] > 1000
    said(capsys, "compile", model, "-o", tmp_path / "bare", "--freestanding")  # and verified
    assert "needs no C library" in said(capsys, "inspect", tmp_path / "bare")
    feed = np.random.default_rng(1).standard_normal((4, 16)).astype(np.float32)
    bare, hosted = run_emulated(tmp_path / "bare", {"x": feed}).outputs["y"], load(tmp_path / "p").run({"x": feed})["y"]
    assert bare.tobytes() == hosted.tobytes()


def test_compile_refuses_a_form_before_any_work(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for flags in (["--prefix", "a b"], ["--emit", "exe"], ["--cc", "no-such-cc"], ["--libc", "dietlibc"]):
        sentence = said(capsys, "compile", model, "-o", tmp_path / "p", *flags, code=2)
        assert flags[1] in sentence and not (tmp_path / "p").exists()


# ---- one file ----


def test_a_package_in_one_file_is_unpacked_once(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MODELC_CACHE", str(tmp_path / "cache"))
    file = tmp_path / "net.modelc.zip"
    for _ in range(2):  # a package is replaced
        said(capsys, "compile", model, "-o", file)
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("net")] == [file.name]
    feed = np.random.default_rng(1).standard_normal((4, 16)).astype(np.float32)
    results = []
    for _ in range(2):
        with load(file, check=True) as opened:
            results.append(opened.run({"x": feed})["y"].copy())
    unpacked = list((tmp_path / "cache").glob("package-*"))
    assert read_package(file).path in unpacked and np.array_equal(*results)
    stamp = (read_package(file).path / "manifest.json").stat().st_mtime_ns
    load(file).close()
    assert (read_package(file).path / "manifest.json").stat().st_mtime_ns == stamp
    said(capsys, "verify", file, "--against", model)
    assert "every file's checksum is right" in said(capsys, "inspect", file)
    np.savez(tmp_path / "in.npz", x=feed)
    said(capsys, "run", file, "--inputs", tmp_path / "in.npz", "--outputs", tmp_path / "out.npz")
    assert np.array_equal(np.load(tmp_path / "out.npz")["y"], results[0])
    code = "import sys; sys.path.insert(0, sys.argv[2]); import loader; loader.load(sys.argv[1]).close()"
    subprocess.run([sys.executable, "-c", code, file, read_package(file).path], check=True)


def test_files_that_are_no_package_are_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.zip").write_bytes(b"years of work")
    with pytest.raises(PackageError, match="is a file that is not a package: it is not replaced"):
        write_package(spec_of(), tmp_path / "thesis.zip")
    with pytest.raises(ModelError, match=r"cannot read the package .*thesis.zip"):
        load(tmp_path / "thesis.zip")
    for name, compression in (("../out", zipfile.ZIP_STORED), ("a", zipfile.ZIP_DEFLATED)):
        with zipfile.ZipFile(tmp_path / "odd.zip", "w", compression) as archive:
            archive.writestr(name, "x" * 100)
        with pytest.raises(ModelError, match="is no package in one file"):
            load(tmp_path / "odd.zip")


# ---- other machines ----


def test_a_foreign_package_has_its_targets_name_and_is_run(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    skip_without_tools("aarch64-linux-gnu")
    monkeypatch.chdir(tmp_path)
    said(capsys, "compile", model, "--no-verify")
    said(capsys, "compile", model, "--target", "raspberry-pi-5", "--no-verify")
    assert {path.name for path in tmp_path.iterdir()} == {"My-Net.modelc", "My-Net.raspberry-pi-5.modelc"}
    np.savez("in.npz", x=np.random.default_rng(1).standard_normal((4, 16)).astype(np.float32))
    for package, outputs in (("My-Net.modelc", "a.npz"), ("My-Net.raspberry-pi-5.modelc", "b.npz")):
        said(capsys, "run", package, "--inputs", "in.npz", "--outputs", outputs)
    np.testing.assert_allclose(np.load("a.npz")["y"], np.load("b.npz")["y"], rtol=1e-5)
    np.savez("in.npz", x=np.zeros((3, 16), np.float32))
    sentence = said(capsys, "run", "My-Net.raspberry-pi-5.modelc", "--inputs", "in.npz", "--outputs", "c.npz", code=2)
    assert "takes x [4, 16]: give arrays of such shapes" in sentence and not Path("c.npz").exists()
