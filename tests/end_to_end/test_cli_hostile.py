"""The command line under what a hostile or careless user gives it: names, numbers, arrays, streams that are full."""

from __future__ import annotations

import errno
import io
import json
import math
import os
import re
import struct
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import small_model as small
from onnx import helper
from repository import ROOT

import modelc
from modelc.cli import VERBS
from modelc.compile.arrays import read_npz
from modelc.compile.options import shape_texts
from modelc.errors import InputError
from modelc.quantize.samples import read_samples
from modelc.verify.engine import Engine, EngineError

SHAPE = (1, 3, 20, 24)


def shell(script: str, **environment: str) -> subprocess.CompletedProcess[bytes]:
    """Runs a line of the shell's, in which $modelc is the command line, $pkg and $model the small network."""
    program = f"{sys.executable} -c 'from modelc.cli import main; main()'"
    paths = {"modelc": program, "pkg": str(small.package()), "model": str(small.model())}
    env = {**os.environ, "PYTHONPATH": str(ROOT), **paths, **environment}
    return subprocess.run(["bash", "-c", script.replace("$modelc", program)], capture_output=True, env=env)


def sigmoid(folder: Path, name: str = "m.onnx", x: str = "x", y: str = "y") -> Path:
    return small.save(folder / name, [helper.make_node("Sigmoid", [x], [y])], {x: [9]}, {y: [9]}, {})


# --- numbers ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("option", ["bench --seconds", "verify --rtol", "verify --atol"])
def test_numbers_are_finite(cli, option) -> None:
    verb, name = option.split()
    more = ["--against", small.model()] if verb == "verify" else []
    for value in ("nan", "inf", "-inf", "1e400", "-1", "x"):
        code, out, err = cli(verb, small.package(), *more, name, value)
        assert code == 2 and out == "" and name in err


def test_python_refuses_numbers_too() -> None:
    with pytest.raises(InputError, match="rtol=nan; expected a number"):
        modelc.verify(small.package(), small.model(), rtol=float("nan"))
    with pytest.raises(InputError, match="seconds is inf"):
        modelc.bench(small.package(), seconds=float("inf"))


@pytest.mark.parametrize(
    "text",
    [
        *("x=-1", "x=1,,2", "x=1_000", "x= 1", "x=٣", "x=2147483648", f"x={'9' * 5000}", "=1", "x=1.0", "x=0x10"),
        f"x={','.join('1' * 33)}",
    ],
)
def test_absurd_shapes_are_refused(cli, text) -> None:
    code, out, err = cli("compile", small.model(), "--shape", text)
    assert code == 2 and out == "" and "expected NAME=1,3,224,224" in err and len(err) < 700


def test_odd_shapes_are_read() -> None:
    assert shape_texts(("a=b=1,0", "x=")) == ({"a=b": (1, 0), "x": ()},)


# --- names --------------------------------------------------------------------------------------------------------


def test_names_are_no_markup(cli, tmp_path) -> None:
    folder, name = tmp_path / "[", "b]a[:smile:\x1b[31m\u202e"  # as a path, it closes what it never opened: [/b]
    folder.mkdir()
    model = sigmoid(folder, f"{name}.onnx", "[/b]", f"{name}\n")
    package, arrays = folder / f"{name}.modelc", folder / f"{name}.npz"
    shown = r"b]a[:smile:\x1b[31m\u202e"
    with zipfile.ZipFile(arrays, "w") as archive:  # savez would make a folder of the name
        archive.writestr("[/b].npy", stored(np.ones(9, np.float32)))
    for arguments in (
        ["compile", model, "-o", package],
        ["inspect", model],
        ["inspect", package],
        ["verify", package, "--against", model],
        ["run", package, "--inputs", arrays, "--outputs", tmp_path / "out.npz"],
    ):
        code, out, err = cli(*arguments)
        assert code == 0, err
        assert shown in out.replace("\n", "") and "\x1b" not in out + err
    code, out, err = cli("inspect", folder / f"{name}.none")
    assert code == 2 and f"[/{shown}.none" in err and "\x1b" not in err


def test_paths_that_are_no_unicode(tmp_path) -> None:
    model = os.fsencode(tmp_path) + b"/\xff\xc3\xa9.onnx"
    os.rename(sigmoid(tmp_path), model)
    ascii_only = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = shell('$modelc inspect --json "$path"; $modelc inspect "$path"', path=os.fsdecode(model), **ascii_only)
    assert done.returncode == 0 and b"every operator is supported" in done.stdout, done.stderr
    assert json.loads(done.stdout[: done.stdout.index(b"\n}") + 2])["supported"]
    done = shell('$modelc inspect "$path".none', path=os.fsdecode(model))
    assert done.returncode == 2 and rb"\udcff" in done.stderr


# --- arrays -------------------------------------------------------------------------------------------------------


def npz(path: Path, members: dict[str, bytes], flags: int = 0) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    if flags:  # of every member, in both places
        raw = bytearray(path.read_bytes())
        for mark, at in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
            start = raw.find(mark)
            while start >= 0:
                raw[start + at] |= flags
                start = raw.find(mark, start + 4)
        path.write_bytes(raw)
    return path


def npy(header: str, data: bytes = b"", version: int = 2) -> bytes:
    text = header.encode()
    return b"\x93NUMPY" + bytes([version, 0]) + struct.pack("<I" if version > 1 else "<H", len(text)) + text + data


def stored(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, array)
    return buffer.getvalue()


def test_arrays_of_any_byte_order_and_order_of_memory(cli, tmp_path) -> None:
    x = np.random.default_rng(0).standard_normal(SHAPE).astype(np.float32)
    results = []
    for k, array in enumerate((x, x.astype(">f4"), np.asfortranarray(x))):
        np.savez(tmp_path / "in.npz", x=array)
        paths = ["--inputs", tmp_path / "in.npz", "--outputs", tmp_path / f"{k}.npz"]
        assert cli("run", small.package(), *paths)[0] == 0
        results.append(np.load(tmp_path / f"{k}.npz")["y"])
    assert (results[0] == results[1]).all() and (results[0] == results[2]).all()


HEADERS = {
    "a huge header": npy("{'descr': '<f4', 'fortran_order': False, 'shape': (" + "1," * 400_000 + "), }\n"),
    "a huge shape": npy("{'descr': '<f4', 'fortran_order': False, 'shape': (1099511627776, 1024), }\n"),
    "a shape beyond 64 bits": npy(f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({1 << 80},), }}\n"),
    "a negative shape": npy("{'descr': '<f4', 'fortran_order': False, 'shape': (-5,), }\n", bytes(20)),
    "deep nesting": npy("{'descr': " + "(" * 3000 + ")" * 3000 + ", 'fortran_order': False, 'shape': (1,), }\n"),
    "no header": npy("{"),
    "an expression": npy("__import__('os').abort()\n"),
    "objects": npy("{'descr': '|O', 'fortran_order': False, 'shape': (1,), }\n", b"cos\nabort\n(tR."),
    "an odd dtype": npy("{'descr': '<q9', 'fortran_order': False, 'shape': (1,), }\n"),
    "another version": npy("{}", version=9),
    "too little data": stored(np.ones(SHAPE, np.float32))[:-1],
    "no array": b"hello",
}


@pytest.mark.parametrize("kind", HEADERS)
def test_damaged_arrays_are_refused(tmp_path, kind) -> None:
    with pytest.raises(InputError, match=r"in\.npz (is no \.npz file|cannot be read)"):
        read_npz(npz(tmp_path / "in.npz", {"x.npy": HEADERS[kind]}))


def test_archives_are_refused(tmp_path, monkeypatch) -> None:
    data = stored(np.ones(SHAPE, np.float32))
    with pytest.raises(InputError, match="is encrypted"):
        read_npz(npz(tmp_path / "a.npz", {"x.npy": data}, flags=1))
    with pytest.raises(InputError, match="two arrays called 'x'"):
        read_npz(npz(tmp_path / "b.npz", {"x.npy": data, "x": data}))
    with pytest.raises(InputError, match="has 5000 arrays"):
        read_npz(npz(tmp_path / "c.npz", {f"x{k}.npy": b"" for k in range(5000)}))
    monkeypatch.setattr("modelc.compile.arrays.MOST_BYTES", 1000)
    with pytest.raises(InputError, match="and 1000 bytes"):
        read_npz(npz(tmp_path / "d.npz", {"x.npy": data}))
    os.mkfifo(tmp_path / "e.npz")
    with pytest.raises(InputError, match="is no file"):
        read_npz(tmp_path / "e.npz")


@pytest.mark.parametrize("verb", ["run", "verify", "profile", "bench", "compile", "reduce"])
def test_arrays_that_do_not_fit_are_not_read(cli, tmp_path, monkeypatch, verb) -> None:
    """An archive of 8 MB may hold an array of 8 GB: what its header says is enough."""
    of_package = {"run": (), "profile": (), "bench": (), "verify": ("--against", small.model())}
    place = small.package() if verb in of_package else small.model()
    monkeypatch.setattr("modelc.compile.arrays._read", lambda *_: pytest.fail("an array was read"))
    header = "{{'descr': '<f4', 'fortran_order': False, 'shape': {}, }}\n"
    for name, shape in (("x", (1 << 31,)), ("x", (1, 3, 1 << 30, 24)), ("other", (1 << 31,))):
        if verb in ("compile", "reduce") and len(shape) == 4:
            shape = (1, 1 << 31, 20, 24)  # the others are free
        path = npz(tmp_path / "in.npz", {f"{name}.npy": npy(header.format(shape))})
        code, _, err = cli(verb, place, "--inputs", path, *of_package.get(verb, ()))
        assert code == 2 and f"in.npz has '{name}', float32{list(shape)}; the inputs of" in err, err
    path = npz(tmp_path / "in.npz", {"x.npy": npy(header.format(SHAPE).replace("f4", "f8"))})
    code, _, err = cli(verb, place, "--inputs", path, *of_package.get(verb, ()))
    assert code == 2 and f"in.npz has 'x', float64{list(SHAPE)}; the inputs of" in err, err


def long_npy(path: Path, shape: tuple[int, ...], dtype: str = "<f4") -> Path:
    """A file as large as its header says, without a byte on the disk."""
    path.write_bytes(npy(f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}\n"))
    os.truncate(path, path.stat().st_size + np.dtype(dtype).itemsize * math.prod(shape))
    return path


def test_one_array_that_does_not_fit_is_not_read(cli, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(np.lib.format, "read_array", lambda *_, **options: pytest.fail("an array was read"))
    for name, shape, dtype, found in (
        ("x", (1 << 20,), "<f4", "float32[1048576]"),
        ("x", (1, 3, 1 << 20, 24), "<f4", "float32[1, 3, 1048576, 24]"),
        ("x", SHAPE, "<f8", f"float64{list(SHAPE)}"),
        ("other", SHAPE, "<f4", f"float32{list(SHAPE)}"),
    ):
        path = long_npy(tmp_path / "x.npy", shape, dtype)
        code, _, err = cli("run", small.package(), "--input", f"{name}={path}")
        assert code == 2 and f"x.npy has '{name}', {found}; the inputs of" in err, err
    samples = tmp_path / "samples"
    samples.mkdir()
    for shape, dtype, sentence in (
        ((1, 1 << 20, 20, 24), "<f4", r"0\.npy has 'x' of shape \[1, 1048576"),
        ((3, 20, 24), "<f8", r"0\.npy has 'x' in float64; expected float32"),
    ):
        long_npy(samples / "0.npy", shape, dtype)
        with pytest.raises(InputError, match=sentence):
            read_samples(samples, small.model(), {})
    for shape, dtype, sentence in (
        ((1 << 20,), "<f4", "has more than 1048576 bytes"),
        ((3,), "<f8", "array of float64"),
    ):
        path = long_npy(tmp_path / "x.npy", shape, dtype)
        code, _, err = cli("compile", small.model(), "--constant", f"x={path}")
        assert code == 2 and sentence in err, err


@pytest.mark.parametrize("kind", [*HEADERS, "an archive", "a pipe", "none"])
def test_damaged_files_of_one_array_are_refused(cli, tmp_path, kind) -> None:
    path = tmp_path / "x.npy"
    if kind == "an archive":
        npz(path, {"x.npy": stored(np.ones(SHAPE, np.float32))})
    elif kind == "a pipe":
        os.mkfifo(path)
    elif kind != "none":
        path.write_bytes(HEADERS[kind])
    code, _, err = cli("run", small.package(), "--input", f"x={path}")
    assert code == 2 and re.search(r"x\.npy (is no \.npy file of numbers|cannot be read)", err.replace("\n", " ")), err


def test_samples_that_do_not_fit_are_not_read(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("modelc.compile.arrays._read", lambda *_: pytest.fail("an array was read"))
    header = "{{'descr': '<f4', 'fortran_order': False, 'shape': {}, }}\n"
    for shape, sentence in (((1 << 31, 3, 20, 24), r"sample\(s\); expected 8 to"), ((8, 1 << 31, 20, 24), "of shape")):
        path = npz(tmp_path / "in.npz", {"x.npy": npy(header.format(shape))})
        with pytest.raises(InputError, match=sentence):
            read_samples(path, small.model(), {})


def test_mutated_archives_never_escape(tmp_path) -> None:
    np.savez_compressed(tmp_path / "whole.npz", x=np.ones(SHAPE, np.float32), y=np.arange(9))
    whole, rng = (tmp_path / "whole.npz").read_bytes(), np.random.default_rng(0)
    refused = 0
    for _ in range(300):
        raw = bytearray(whole)
        for at in rng.integers(0, len(raw), rng.integers(1, 9)):
            raw[at] = rng.integers(256)
        (tmp_path / "m.npz").write_bytes(raw[: rng.integers(1, len(raw) + 1)] if rng.random() < 0.3 else raw)
        try:
            read_npz(tmp_path / "m.npz")
        except InputError:
            refused += 1
    assert refused > 100


# --- streams ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["inspect $pkg", "targets list --json"])
@pytest.mark.parametrize(
    ("stream", "reason"), [(">/dev/full", b"No space left on device"), (">&-", b"Bad file descriptor")]
)
def test_stdout_that_takes_nothing(verb, stream, reason) -> None:
    done = shell(f"$modelc {verb} {stream}")
    assert done.returncode == 2
    assert done.stderr == b"modelc: the result cannot be written to stdout: " + reason + b"\n"


def test_help_that_nobody_can_read() -> None:
    done = shell("$modelc --help >/dev/full; echo $? >&2")
    assert b"Traceback" not in done.stderr and done.stderr.endswith(b"2\n")


def test_stderr_that_takes_nothing_changes_no_outcome() -> None:
    done = shell(
        '$modelc compile "$model" --shape x=1,3,20,24 --stop-after import 2>/dev/full; echo $?;'
        "$modelc inspect none <&- 2>&-; echo $?"
    )
    assert done.stdout == b"stopped after import\n0\n2\n" and done.stderr == b""


def test_a_reader_that_has_seen_enough() -> None:
    done = shell("($modelc targets list; echo $? >&2) | exec 0<&-")
    assert done.stderr in (b"141\n", b"0\n")  # 0: it was the quicker one


def test_no_room_for_temporary_files(tmp_path) -> None:
    limited = "ulimit -f 0; $modelc verify $pkg --against $model --json"  # no file can grow, wherever it is
    done = shell(f"{limited} | cat; exit ${{PIPESTATUS[0]}}", TMPDIR=str(tmp_path))
    assert done.returncode == 2 and b"Traceback" not in done.stderr
    assert json.loads(done.stdout)["error"]["kind"] == "ExhaustedError" and not list(tmp_path.iterdir())


# --- JSON ---------------------------------------------------------------------------------------------------------


READ_NOTHING = ("targets", "database", "cache", "doctor", "help")


@pytest.mark.parametrize("verb", [verb.name for verb in VERBS if verb.name not in READ_NOTHING])
def test_every_verb_says_its_error_as_json(cli, tmp_path, verb) -> None:
    np.savez(tmp_path / "in.npz", x=np.ones(3, np.float32))
    more = {
        "verify": ["--against", small.model()],
        "diff": [small.package()],
        "run": ["--inputs", tmp_path / "in.npz", "--outputs", tmp_path / "out.npz"],
    }
    code, out, err = cli(verb, tmp_path / "none", *more.get(verb, ()), "--json")
    error = json.loads(out)["error"]
    assert code == error["exit_code"] == 2 and error["kind"] in ("PackageError", "ModelError", "ConfigError")
    assert err.splitlines()[-1] == f"modelc: {error['message']}"


@pytest.mark.parametrize("verb", ["show", "check"])
def test_targets_say_their_errors_as_json(cli, tmp_path, verb) -> None:
    code, out, _ = cli("targets", verb, tmp_path / "none.yaml", "--json")
    assert code == 2 and json.loads(out)["error"]["kind"] == "TargetError"


def test_usage_and_interrupts_as_json(cli, monkeypatch) -> None:
    code, out, err = cli("inspect", "--json", "--turbo")
    error = json.loads(out)["error"]
    assert code == 2 and error["kind"] == "UsageError" and error["message"] in err

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("modelc.compile.describe.summary", interrupted)
    code, out, _ = cli("inspect", small.model(), "--json")
    assert code == 130 and json.loads(out)["error"] == {
        "kind": "Interrupted",
        "message": "interrupted",
        "exit_code": 130,
    }


def test_intrinsics_that_fail_are_one_document(cli, tmp_path) -> None:
    text = (ROOT / "targets/intrinsics/vnni.yaml").read_text()
    (tmp_path / "t.yaml").write_text(text.replace("instruction: vpdpbusd", "instruction: vpdpbusq"))
    code, out, _ = cli("targets", "check", tmp_path / "t.yaml", "--json")
    outcomes = json.loads(out)["outcomes"]
    assert code == 1 and any(outcome["status"] == "wrong" for outcome in outcomes)


# --- what packages are compared with ------------------------------------------------------------------------------


def test_another_model_is_said(cli, tmp_path, in_brief) -> None:
    other = tmp_path / "other.onnx"
    other.write_bytes(small.model().read_bytes() + b"\x32\x00")  # an empty docstring: another file, the same model
    package, same = small.package(), small.model()
    for verb in (["verify", package, "--against"], ["bench", package, "--seconds", 0.1, "--model"]):
        code, out, err = cli(*verb, other, "--json")
        found = json.loads(out)
        notes = found.get("summary", found)["notes"]
        assert code == 0 and "was compiled from another file" in err
        assert sum("another file" in note for note in notes) == 1
    code, out, err = cli("bench", package, "--seconds", 0.1, "--model", same, "--json")
    assert code == 0 and json.loads(out)["notes"] == [] and err == ""


DYING = {  # what the worker's Python does before it serves, and what is to be said
    "import os; os.abort()": "crashed (SIGABRT)",
    "import os; os.kill(os.getpid(), 9)": "crashed (SIGKILL, as it does where memory is out)",
    "import os, sys; sys.stderr.write('no such thing\\n'); os._exit(1)": "ended with code 1 when it was asked to open",
}


@pytest.mark.parametrize("program", DYING)
def test_an_engine_that_dies_is_told_from_a_package_that_does(cli, tmp_path, monkeypatch, program) -> None:
    package = small.package()  # which is verified where no engine dies
    (tmp_path / "sitecustomize.py").write_text(program)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(EngineError, match="nothing to compare the package with") as said:
        Engine("ort", small.model(), timed=False)
    assert DYING[program] in str(said.value) and ("no such thing" in str(said.value)) == ("no such" in program)
    code, out, err = cli("verify", package, "--against", small.model())
    assert code == 2 and out == "" and DYING[program] in err


def test_samples_are_drawn_one_at_a_time(monkeypatch) -> None:
    alive, most = [0], [0]

    class Counted(dict):
        def __init__(self, *arguments: object) -> None:
            super().__init__(*arguments)
            alive[0] += 1
            most[0] = max(most[0], alive[0])

        def __del__(self) -> None:
            alive[0] -= 1

    from modelc.verify import check

    draw = check.draw_inputs
    monkeypatch.setattr(check, "draw_inputs", lambda *arguments: Counted(draw(*arguments)))
    report = modelc.verify(small.package(), small.model(), samples=4)
    assert report.passed and report.samples == 8 and most[0] <= 2


def test_a_resource_that_ran_out_has_a_sentence() -> None:
    from modelc.errors import ExhaustedError, escaped

    nowhere = FileNotFoundError(errno.ENOENT, "No usable temporary directory found in ['/tmp']")
    assert isinstance(escaped(nowhere), ExhaustedError) and "TMPDIR" in str(escaped(nowhere))


def test_a_limit_of_memory_is_a_sentence() -> None:
    """TVM goes on without its compiler where that cannot be loaded."""
    flags = "--dim batch=1 --dim h=20 --dim w=24 --stop-after codegen --no-cache"
    done = shell(f"ulimit -v 300000; $modelc compile $model {flags}", OPENBLAS_NUM_THREADS="1")
    assert done.returncode == 2 and re.search(b"cannot be loaded: .*allow 2 GB|needs more memory", done.stderr)


def test_tvm_without_its_compiler_is_a_sentence() -> None:
    done = shell("$modelc targets check x86-64-v3", TVM_USE_RUNTIME_LIB="1")
    assert done.returncode == 2 and b"only its runtime is wanted (TVM_USE_RUNTIME_LIB)" in done.stderr
