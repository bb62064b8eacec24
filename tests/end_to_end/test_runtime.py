"""The C runtime and the Python loader, on a model of hand-written kernels."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from runtime_driver import build_driver, skip_without_flag
from tiny_package import NATIVE_TRIPLE, check_outputs, inputs_of, skip_without_tools, spec_of

from modelc.ir.expr import DTYPES
from modelc.package import Argument, Plan, Step, TensorInfo, find_toolchain, read_package, write_package
from modelc.package.sources import RUNTIME
from modelc.runtime import ModelError, load

DRIVER = Path(__file__).with_name("test_runtime_driver.c")


def unaligned(array: np.ndarray, shift: int) -> np.ndarray:
    memory = np.zeros(array.nbytes + 64, np.uint8)
    start = -memory.ctypes.data % 64 + shift
    view = memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    view[...] = array
    return view


# ---- running ----


@pytest.mark.parametrize("threads", [None, 1, 2, 5])
def test_every_variant_runs(package: Path, threads: int | None) -> None:
    with load(package, threads=threads) as model:
        assert [tuple(t) for t in model.inputs] == [("x", "float32", (40, 64)), ("mask", "bool", (5,))]
        assert [tuple(t) for t in model.variants[1].outputs] == [("y", "float32", (7, 64)), ("total", "int64", ())]
        assert model.threads == (threads or model.threads) and model.metadata["name"] == "tiny"
        for rows in (40, 7, 40):
            check_outputs(model.run(inputs_of(rows)), inputs_of(rows))


def test_the_bits_do_not_depend_on_the_number_of_threads(package: Path) -> None:
    with load(package, threads=1) as one:
        expected = one.run(inputs_of())
        for threads in (2, 3, 7):
            with load(package, threads=threads) as other:
                for _ in range(20):
                    assert other.run(inputs_of())["y"].tobytes() == expected["y"].tobytes()


@pytest.mark.parametrize("shift", [1, 4, 12])
def test_buffers_of_any_alignment_are_taken(package: Path, shift: int) -> None:
    if shift == 1 and not NATIVE_TRIPLE.startswith("x86"):
        pytest.skip("floats at odd addresses are x86's own")
    inputs = inputs_of()
    given = {name: unaligned(array, shift) for name, array in inputs.items()}
    out = {"y": unaligned(np.zeros((40, 64), np.float32), shift)}
    with load(package) as model:
        outputs = model.run(given, out=out)
    check_outputs(outputs, inputs)
    assert outputs["y"] is out["y"]


def test_results_that_are_held_are_not_written_again(package: Path) -> None:
    with load(package) as model:
        inputs = inputs_of()
        held = [model.run(inputs)["y"][1:, ::2] for _ in range(4)]  # views alone, each of storage of its own
        assert len({view.ctypes.data for view in held}) == len(held)
        model.run({**inputs, "x": 2 * inputs["x"]})
        assert all(np.array_equal(view, held[0]) for view in held)
    assert np.array_equal(held[0], held[1])  # closed or not


def test_storage_of_results_is_used_again_and_begins_at_cache_lines(package: Path) -> None:
    with load(package) as model:
        places = []
        for _ in range(6):
            outputs = model.run(inputs_of())  # while the last ones are still held
            places.append(outputs["y"].ctypes.data)
            assert all(array.ctypes.data % 64 == 0 for array in outputs.values())
        assert len(set(places)) == 2
        outputs["y"].shape = (64, 40)  # only of this view
        del outputs
        assert model.run(inputs_of())["y"].shape == (40, 64)


def test_inputs_may_be_read_only(package: Path) -> None:
    inputs = inputs_of()
    for array in inputs.values():
        array.flags.writeable = False
    with load(package) as model:
        check_outputs(model.run(inputs), inputs_of())


def test_strided_inputs_are_copied(package: Path) -> None:
    x = np.asfortranarray(inputs_of()["x"])
    with load(package) as model:
        check_outputs(model.run({**inputs_of(), "x": x}), inputs_of())


def test_one_handle_serves_many_threads(package: Path) -> None:
    with load(package, threads=2) as model, ThreadPoolExecutor(4) as pool:
        for outputs, rows in [(pool.submit(model.run, inputs_of(rows)), rows) for rows in [40, 7] * 50]:
            check_outputs(outputs.result(), inputs_of(rows))


def test_handles_run_at_the_same_time(package: Path) -> None:
    def work(threads: int) -> None:
        with load(package, threads=threads) as model:
            for _ in range(50):
                check_outputs(model.run(inputs_of()), inputs_of())

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, [1, 2, 3, 4]))


def test_closing_waits_and_a_closed_model_says_so(package: Path) -> None:
    model = load(package)
    model.close()
    model.close()
    with pytest.raises(ModelError, match="the model is closed"):
        model.run(inputs_of())


def test_a_replaced_package_is_loaded_anew(copy: Path) -> None:
    before = load(copy)
    write_package(spec_of(name="other"), copy)
    with load(copy) as after:
        assert (before.metadata["name"], after.metadata["name"]) == ("tiny", "other")
        check_outputs(after.run(inputs_of()), inputs_of())
    check_outputs(before.run(inputs_of()), inputs_of())


def test_profile(package: Path) -> None:
    with load(package, threads=2) as model:
        steps = model.profile(inputs_of(7), repeat=5)
        assert [s.name for s in steps] == ["scale", 'row norm \\ "?', "normalise", "count"]
        assert all(s.calls == 5 and 0 < s.seconds < 60 for s in steps)
        assert (steps[0].flops, steps[0].bytes) == (3 * 7 * 64, 8 * 7 * 64)


@pytest.mark.parametrize("flush", [True, False])
def test_subnormals_are_flushed_if_the_package_says_so(tmp_path: Path, flush: bool) -> None:
    x = np.full((40, 64), 1e-40, np.float32)
    path = write_package(spec_of(flush_denormals=flush), tmp_path / "tiny.modelc").path
    for threads in (1, 3):
        with load(path, threads=threads) as model:
            y = model.run({**inputs_of(), "x": x})["y"]
            assert not y.any() if flush else y.all()
            assert np.float32(1e-40) * np.float32(0.5) != 0  # the calling thread's mode is as before


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16", "int8", "int32", "uint64", "bool", "int4"])
def test_every_dtype_passes(tmp_path: Path, dtype: str) -> None:
    (tmp_path / "copy.c").write_text(
        "#include <stdint.h>\n#include <string.h>\n"
        "void copy6(const void *x, void *y, uint8_t *s, int32_t b, int32_t e) { memcpy(y, x, 6 * WIDTH); }\n"
    )
    tensors = (TensorInfo("x", dtype, (2, 3)),), (TensorInfo("y", dtype, (2, 3)),)
    width = f"-DWIDTH={tensors[0][0].bytes // 6}"
    find_toolchain(NATIVE_TRIPLE).compile(["-fPIC", width, "-c", "copy.c"], tmp_path)
    steps = (Step("copy", "copy6", (Argument("input", 0), Argument("output", 0))),)
    objects = {"copy": (tmp_path / "copy.o").read_bytes()}
    path = write_package(spec_of(variants=(Plan(*tensors, steps),), objects=objects, params=()), tmp_path / "copy").path
    x = np.arange(6).reshape(2, 3).astype(DTYPES[dtype])
    with load(path) as model:
        y = model.run({"x": x})["y"]
    assert y.dtype == x.dtype and np.array_equal(y, x)


# ---- refusals of inputs ----


def changed(**changes: object) -> dict[str, object]:
    return {name: array for name, array in {**inputs_of(), **changes}.items() if array is not None}


@pytest.mark.parametrize(
    ("inputs", "sentence"),
    [
        (changed(mask=None), "takes the inputs 'x', 'mask'; it was given 'x'"),
        (changed(z=np.zeros(1)), "it was given 'x', 'mask', 'z'"),
        (changed(x=np.zeros((40, 64))), "input 'x' is float64; the model takes float32"),
        (changed(x=np.zeros((40, 64), ">f4")), "input 'x' is"),
        (changed(x=np.zeros((3, 64), np.float32)), r"given x \[3, 64\], mask \[5\]; it was compiled for x \[40, 64\]"),
    ],
)
def test_wrong_inputs_are_refused(package: Path, inputs: dict[str, np.ndarray], sentence: str) -> None:
    with load(package) as model, pytest.raises(ModelError, match=sentence):
        model.run(inputs)


def test_wrong_output_arrays_are_refused(package: Path) -> None:
    inputs, right = inputs_of(), np.zeros((40, 64), np.float32)
    frozen = right.copy()
    frozen.flags.writeable = False
    cases = [
        ({"z": right}, "names 'z'; the model's outputs are 'y', 'total'"),
        ({"y": right[:3]}, r"has float32 \[3, 64\] for output 'y', which is float32 \[40, 64\]"),
        ({"y": np.asfortranarray(right)}, "non-contiguous"),
        ({"y": frozen}, "read-only"),
        ({"y": inputs["x"]}, "overlaps"),
    ]
    with load(package) as model:
        for out, sentence in cases:
            with pytest.raises(ModelError, match=sentence):
                model.run(inputs, out=out)


# ---- refusals of packages ----


def open_in_c(library: Path, folder: Path) -> tuple[int, str]:
    """What `open` of one package's library says to a folder: the loader's own checks come before it otherwise."""
    code = (
        "import ctypes, sys\nlibrary, handle = ctypes.CDLL(sys.argv[1]), ctypes.c_void_p()\n"
        "options = (ctypes.c_uint64 * 3)(24, 1 | int(sys.argv[3]) << 32, 0)\n"
        "open_model, last_error = (getattr(library, f'{sys.argv[4]}_{name}') for name in ('open', 'last_error'))\n"
        "last_error.restype = ctypes.c_char_p\n"
        "print(open_model(sys.argv[2].encode(), options, ctypes.byref(handle)))\n"
        "print(last_error().decode())\n"
    )
    command = [sys.executable, "-c", code, str(library), str(folder), "1", library.stem.removeprefix("lib")]
    status, text = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split("\n", 1)
    return int(status), text


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def test_a_whole_package_opens_in_c(package: Path) -> None:
    assert open_in_c(package / "libtiny.so", package)[0] == 0


def test_damaged_parameters_are_refused(copy: Path) -> None:
    params = copy / "params.bin"
    data = params.read_bytes()
    params.write_bytes(data[:-1] + b"\1")
    load(copy).close()  # the size is right, and the checksum is made on request
    with pytest.raises(ModelError, match=r"params.bin is damaged: its checksum"):
        load(copy, check=True)
    status, text = open_in_c(copy / "libtiny.so", copy)
    assert status == 3 and "params.bin is damaged: its checksum" in text
    params.write_bytes(data[:-1])
    with pytest.raises(ModelError, match=r"params.bin is damaged: it has 319 bytes instead of 320"):
        load(copy)
    status, text = open_in_c(copy / "libtiny.so", copy)
    assert status == 3 and "has 319 bytes instead of 320" in text
    params.unlink()
    with pytest.raises(ModelError, match=r"cannot read .*params.bin"):
        load(copy)
    assert open_in_c(copy / "libtiny.so", copy)[0] == 2


def test_a_damaged_library_is_not_executed(copy: Path) -> None:
    data = (copy / "libtiny.so").read_bytes()
    for damaged in (data[:-100], data[:2000] + bytes([data[2000] ^ 1]) + data[2001:]):
        (copy / "libtiny.so").write_bytes(damaged)
        with pytest.raises(ModelError, match=r"libtiny.so is damaged"):
            load(copy)


def test_manifest_and_library_are_a_pair(copy: Path, tmp_path: Path) -> None:
    other = write_package(spec_of(name="other"), tmp_path / "other.modelc").path
    status, text = open_in_c(other / "libother.so", copy)
    assert status == 4 and "come from different builds" in text
    build_id = read_package(copy).manifest.build_id
    edit(copy / "manifest.json", build_id, build_id[::-1])
    with pytest.raises(ModelError, match="come from different builds"):
        load(copy)
    (copy / "manifest.json").write_text("{}")
    assert open_in_c(other / "libother.so", copy)[0] == 4
    with pytest.raises(ModelError, match=r"manifest.json is damaged"):
        load(copy)


def test_another_schema_is_refused(copy: Path) -> None:
    edit(copy / "manifest.json", '"schema_version": 2', '"schema_version": 3')
    with pytest.raises(ModelError, match="of schema 3; this loader knows schema 2"):
        load(copy)
    status, text = open_in_c(copy / "libtiny.so", copy)
    assert status == 5 and "of schema 3; this library knows schema 2" in text
    edit(copy / "manifest.json", '"schema_version": 3', '"schema_version": 1')
    with pytest.raises(ModelError, match=r"of schema 1, of an earlier modelc; .*: compile the model again"):
        load(copy)


def test_a_name_in_the_manifest_does_not_leave_the_package(copy: Path) -> None:
    edit(copy / "manifest.json", '"tiny.h"', '"../tiny.h"')
    with pytest.raises(ModelError, match=r"lists the file '../tiny.h', which is not in the package"):
        load(copy)


def test_missing_cpu_features_are_named(tmp_path: Path) -> None:
    common = {"x86_64": ("sse2", "+sse4.2"), "aarch64": ("neon",)}.get(NATIVE_TRIPLE.split("-")[0], ())
    with load(write_package(spec_of(features=common), tmp_path / "common.modelc").path) as model:
        check_outputs(model.run(inputs_of()), inputs_of())
    path = write_package(spec_of(features=(*common, "quantum-avx")), tmp_path / "invented.modelc").path
    with pytest.raises(ModelError, match="needs the CPU feature 'quantum-avx'"):
        load(path)


@pytest.mark.skipif(not NATIVE_TRIPLE.startswith("x86"), reason="compares with the names in Linux's x86 cpuinfo")
def test_cpu_features_are_those_that_linux_reports(tmp_path: Path) -> None:
    flags = next(line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("flags")).split()
    library = tmp_path / "cpu.so"
    find_toolchain(NATIVE_TRIPLE).compile(
        ["-shared", "-fPIC", str(RUNTIME / "modelc_features.c"), "-o", str(library)], tmp_path
    )
    has = ctypes.CDLL(str(library)).mc_cpu_has
    names = "fma avx avx2 f16c sse4_1 avx512f avx512bw avx512vl avx512dq avx512_vnni avx512_bf16 avx_vnni avx512_fp16"
    for name in [*names.split(), "avx512_vbmi2", "gfni", "amx_tile", "amx_int8", "amx_bf16"]:
        assert (has(name.encode()) == 0) == (name in flags), name


def test_another_machines_package_is_refused(tmp_path: Path) -> None:
    other = "aarch64-linux-gnu" if NATIVE_TRIPLE.startswith("x86") else "x86_64-linux-gnu"
    skip_without_tools(other)
    path = write_package(spec_of(other), tmp_path / "other.modelc").path
    with pytest.raises(ModelError, match=f"was built for {other.split('-')[0]}; this is"):
        load(path)


def test_no_package(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"is a file; expected a package, which is a folder"):
        load(Path(__file__))
    with pytest.raises(ModelError, match=r"is not a package: cannot read .*manifest.json: No such file"):
        load(tmp_path)


# ---- what is in a package ----


def test_the_library_exports_the_interface_alone(package: Path) -> None:
    text = subprocess.run(["nm", "-D", "--defined-only", package / "libtiny.so"], capture_output=True, text=True).stdout
    header = (package / "tiny.h").read_text()
    exported = {line.split()[-1] for line in text.splitlines()}
    assert len(exported) == 27 and all(f"{name}(" in header for name in exported)


@pytest.mark.skipif(not shutil.which("c++"), reason="no C++ compiler")
def test_the_header_is_cpp_too(package: Path) -> None:
    subprocess.run(["c++", "-x", "c++", "-Wall", "-Werror", "-fsyntax-only", package / "tiny.h"], check=True)


def test_the_example_compiles_and_runs(copy: Path) -> None:
    toolchain = find_toolchain(NATIVE_TRIPLE)
    flags = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-pedantic"]
    toolchain.compile([*flags, "example.c", "./libtiny.so", "-Wl,-rpath,$ORIGIN", "-o", "example"], copy)
    done = subprocess.run([copy / "example", copy], capture_output=True, text=True)
    assert done.returncode == 0 and "input x: float32[40, 64]" in done.stdout and "y[0] = 0" in done.stdout
    with load(copy) as model:
        x = {t.name: np.full(t.shape, 2, t.dtype) for t in model.inputs}
        expected, names = model.run(x), [t.name for t in model.outputs]
    for name, array in x.items():
        array.tofile(copy / f"{name}.in")
    files = [*(copy / f"{name}.in" for name in x), *(copy / f"{name}.out" for name in names)]
    done = subprocess.run([copy / "example", copy, *files], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for name in names:
        assert (copy / f"{name}.out").read_bytes() == expected[name].tobytes()
    done = subprocess.run([copy / "example", copy, copy / "tiny.h"], capture_output=True, text=True)
    assert done.returncode == 1 and "not the" in done.stderr
    done = subprocess.run([copy / "example", "/nowhere"], capture_output=True, text=True)
    assert done.returncode == 1 and "cannot open /nowhere/manifest.json" in done.stderr


def test_the_packages_own_loader_needs_numpy_alone(package: Path) -> None:
    code = """if True:
        import sys
        for name in ("modelc", "tvm", "onnx", "onnxruntime", "jsonschema", "yaml", "scipy", "ml_dtypes"):
            sys.modules[name] = None
        import loader, numpy
        with loader.load(sys.argv[1]) as model:
            inputs = {t.name: numpy.ones(t.shape, t.dtype) for t in model.inputs}
            assert model.run(inputs)["total"] == 5
    """
    subprocess.run([sys.executable, "-c", code, package], cwd=package, check=True)


def test_the_runtime_room_imports_no_compiler() -> None:
    code = "import sys, modelc.runtime; assert not {'tvm', 'onnx', 'onnxruntime', 'jsonschema'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


# ---- memory, threads, time ----


# Every other call is interrupted by a signal, and files are read in parts; with FAILS, they cannot be read at all.
INTERRUPTED = r"""
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { PART = 100 };
static _Thread_local unsigned opened, parts;

static int interrupted(unsigned *calls) {
    errno = EINTR;
    return (*calls)++ % 2 == 0;
}

int open(const char *path, int flags, ...) {
    return interrupted(&opened) ? -1 : (int)syscall(SYS_openat, AT_FDCWD, path, flags, 0);
}

ssize_t read(int fd, void *data, size_t bytes) {
    if (interrupted(&parts)) return -1;
#ifdef FAILS
    errno = EIO;
    return -1;
#endif
    return syscall(SYS_read, fd, data, bytes < PART ? bytes : (size_t)PART);
}
"""


@pytest.mark.parametrize("fails", [False, True])
def test_signals_interrupt_no_opening(package: Path, tmp_path: Path, fails: bool) -> None:
    (tmp_path / "interrupted.c").write_text(INTERRUPTED)
    driver = build_driver(DRIVER, tmp_path, package, "interrupted.c", *["-DFAILS"] * fails)
    done = subprocess.run([driver, package], capture_output=True, text=True, timeout=600)
    if fails:
        assert done.returncode == 1 and f"cannot read {package}/manifest.json: Input/output error" in done.stderr
    else:
        assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr


@pytest.mark.parametrize("flag", ["-fsanitize=address,undefined", "-fsanitize=thread", "-DCOUNT_ALLOCATIONS"])
def test_the_runtime_under_sanitizers(package: Path, tmp_path: Path, flag: str) -> None:
    skip_without_flag(tmp_path, flag)
    driver = build_driver(DRIVER, tmp_path, package, flag, "-fno-sanitize-recover=all")
    environment = {**os.environ, "TSAN_OPTIONS": "halt_on_error=1"}
    done = subprocess.run([driver, package], capture_output=True, text=True, timeout=600, env=environment)
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr


def test_the_default_number_of_threads_follows_the_affinity(package: Path) -> None:
    code = "import os, sys, modelc.runtime as r; os.sched_setaffinity(0, {%d}); print(r.load(sys.argv[1]).threads)"
    cpus = os.sched_getaffinity(0)
    command = [sys.executable, "-c", code % min(cpus), package]
    assert subprocess.run(command, capture_output=True, text=True).stdout == "1\n"
    with load(package) as model:
        assert 1 <= model.threads <= len(cpus)


def asleep(threads: set[str]) -> bool:
    """Whether these threads of this process sleep, and did nothing for a while."""

    def standing() -> list[tuple[str, ...]]:
        """The state of each, and the clock ticks that it has taken."""
        stats = (Path(f"/proc/self/task/{thread}/stat").read_text().rpartition(")")[2].split() for thread in threads)
        return [(fields[0], *fields[11:13]) for fields in stats]

    before = standing()
    time.sleep(0.1)
    return {state for state, *_ in before} == {"S"} and standing() == before


def test_workers_end_with_their_handle_and_sleep_when_idle(package: Path) -> None:
    def tasks() -> set[str]:
        return set(os.listdir("/proc/self/task"))

    before = tasks()
    with load(package, threads=4) as model:
        model.run(inputs_of())
        workers = tasks() - before
        assert len(workers) == 3
        end = time.monotonic() + 60  # they first look for more to do
        while not asleep(workers):
            assert time.monotonic() < end
    deadline = time.monotonic() + 60  # the kernel takes a moment to forget a thread that was joined
    while tasks() & workers and time.monotonic() < deadline:
        time.sleep(0.001)
    assert not tasks() & workers


def test_a_manifest_of_another_build_is_told_in_c(package: Path, tmp_path: Path) -> None:
    other = write_package(spec_of(notes=("another",)), tmp_path / "other.modelc").path
    mixed = Path(shutil.copytree(package, tmp_path / "mixed.modelc"))
    shutil.copy(other / "manifest.json", mixed)
    status, text = open_in_c(mixed / "libtiny.so", mixed)
    assert status == 4 and text.startswith(f"{mixed}/manifest.json and the loaded library come from different builds")
    assert "copy the whole package again" in text and "--prefix" in text


def test_a_manifest_that_was_cut_is_refused_in_c(tmp_path: Path) -> None:
    """Wherever, also where what is left has the build's number; and where more follows it."""
    notes = ('a note of some length, } and ] and \\" in it',) * 200
    place = write_package(spec_of(notes=notes), tmp_path / "long.modelc").path
    whole = (place / "manifest.json").read_bytes().rstrip()
    assert len(whole) > 10_000
    for at in (0, 1, 100, 1000, 4095, 4096, 8191, 9000, len(whole) // 2, len(whole) - 2, len(whole) - 1):
        (place / "manifest.json").write_bytes(whole[:at])
        status, text = open_in_c(place / "libtiny.so", place)
        assert status == 4 and text.startswith(f"{place}/manifest.json is damaged: it is not one JSON object"), at
    for more in (b"}", b"\0", b"{}"):
        (place / "manifest.json").write_bytes(whole + more)
        assert open_in_c(place / "libtiny.so", place)[0] == 4
    (place / "manifest.json").write_bytes(whole + b"\n \n")
    assert open_in_c(place / "libtiny.so", place)[0] == 0


def test_a_forked_child_still_computes(package: Path) -> None:
    """At once after a run, when workers are about to sleep: one that holds its lock then is not in the child."""
    code = """if True:
        import os, sys, numpy, modelc.runtime
        for _ in range(60):
            model = modelc.runtime.load(sys.argv[1], threads=3)
            inputs = {t.name: numpy.ones(t.shape, t.dtype) for t in model.inputs}
            expected = model.run(inputs)["y"]
            child = os.fork()
            same = (model.run(inputs)["y"] == expected).all()
            model.close()
            if not child:
                os._exit(0 if same else 1)
            assert same and os.waitpid(child, 0)[1] == 0
    """
    subprocess.run([sys.executable, "-c", code, package], check=True, timeout=120)


def test_opening_is_quick(package: Path) -> None:
    def seconds() -> float:
        start = time.thread_time()
        load(package).close()
        return time.thread_time() - start

    assert min(seconds() for _ in range(10)) < 0.010


def test_models_are_loaded_from_threads(package: Path) -> None:
    errors: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(5):
                with load(package, threads=2) as model:
                    check_outputs(model.run(inputs_of()), inputs_of())
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors


def test_the_manifest_is_compared_as_text(copy: Path) -> None:
    """Formatted otherwise, and with misleading strings in it, it is still the library's manifest."""
    data = json.loads((copy / "manifest.json").read_text())
    data["notes"] = ['"build_id": "no"', "schema_version", '"build_id"']
    reordered = {"notes": data.pop("notes"), **data}
    for text in (json.dumps(reordered), json.dumps(reordered, indent=3, separators=(",", " :\t"))):
        (copy / "manifest.json").write_text(text)
        load(copy).close()
