"""What every verb does with a package for any size: at a stated size, with sentences for what it does not do."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from control_models import INFO, node, saved
from onnx import TensorProto

import modelc
from modelc.cli import main
from modelc.compile.arrays import write_npz
from modelc.errors import ConfigError, InputError, PackageError
from modelc.ir.expr import Size
from modelc.ir.sizes import number_of
from modelc.package import read_package
from modelc.package.runs import at_inputs, run_with, usual_run
from modelc.runtime import InferenceSession
from modelc.runtime import ModelError as LoadedError
from modelc.runtime.shown import extent_text

F = TensorProto.FLOAT


def command(words: list[str]) -> int:
    """The exit code of a command."""
    with pytest.raises(SystemExit) as ended:
        main(words)
    return int(ended.value.code or 0)


def rows(path: Path, name: str = "rows") -> Path:
    """Any number of rows, in pairs where that is the name, -> a product; a sum of all is added to what was before."""
    weights = {"w": np.random.default_rng(0).standard_normal((8, 6)).astype(np.float32)}
    nodes = [
        node("MatMul", ["x", "w"], ["a"]),
        node("Mul", ["a", "scale"], ["y0"]),
        node("ReduceSum", ["y0"], ["s"], keepdims=0),
        node("Add", ["s", "old"], ["new"]),
        node("Add", ["y0", "old"], ["y"]),
    ]
    saved(path, nodes, [INFO("scale", F, []), INFO("old", F, []), INFO("x", F, [name, 8])], ["y", "new"], weights)
    return path


def feed(n: int) -> dict[str, np.ndarray]:
    x = np.random.default_rng(n).standard_normal((n, 8)).astype(np.float32)
    return {"scale": np.float32(2), "old": np.float32(1), "x": x}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("any")
    model = rows(folder / "model.onnx")
    modelc.compile(model, output=folder / "any.modelc", dims={"rows": "1..20@9,4"}, inputs=feed(13))
    return model, folder / "any.modelc"


def test_inputs_are_compared_at_their_own_size(made: tuple[Path, Path]) -> None:
    verification = read_package(made[1]).manifest.verification
    assert verification is not None and verification["sizes"][0] == {"rows": 13}
    assert all({"rows": n} in verification["sizes"] for n in (1, 20, 9, 4))  # the last two are those that matter


@pytest.mark.parametrize("inputs", [None, 5])
def test_it_is_verified_alone(made: tuple[Path, Path], inputs: int | None) -> None:
    model, package = made
    report = modelc.verify(package, model, inputs=None if inputs is None else feed(inputs), check="quick")
    assert report.passed and report.kernels and not report.unjudged
    assert report.sizes[0]["rows"] == inputs if inputs else len(report.sizes) > 2


def test_inputs_out_of_bounds_are_a_sentence(made: tuple[Path, Path]) -> None:
    with pytest.raises(InputError, match="21 along 'rows'"):
        modelc.verify(made[1], made[0], inputs=feed(21))


def test_choices_make_the_same_package(made: tuple[Path, Path], tmp_path: Path) -> None:
    model, package = made
    result = modelc.compile(model, output=tmp_path / "again.modelc", choices=package, inputs=feed(13))
    assert result.chosen == result.kernels
    for file in package.iterdir():
        assert file.read_bytes() == (tmp_path / "again.modelc" / file.name).read_bytes(), file.name


def test_choices_of_other_sizes_are_a_sentence(made: tuple[Path, Path], tmp_path: Path) -> None:
    model, package = made
    choices = json.loads((package / "choices.json").read_text())
    choices["free"]["rows"]["most"] = 0
    (tmp_path / "choices.json").write_text(json.dumps(choices))
    with pytest.raises(ConfigError, match=r"free\.rows"):
        modelc.compile(model, output=tmp_path / "any.modelc", choices=tmp_path)


def test_times_are_of_a_stated_size(made: tuple[Path, Path], in_brief: None) -> None:
    model, package = made
    timed = modelc.bench(package, against="ort", model=model, seconds=0.05)
    assert timed["sizes"] == {"rows": 9} and timed["inputs"]["x"] == [9, 8]
    small, large = (modelc.profile(package, repeat=2, dims={"rows": n})["kernels"] for n in (2, 20))
    assert sum(k["flops"] for k in large) > 5 * sum(k["flops"] for k in small)
    assert modelc.profile(package, repeat=2, inputs=feed(3))["sizes"] == {"rows": 3}
    with pytest.raises(InputError, match=r"rows=21: .* takes rows 1 to 20"):
        modelc.bench(package, dims={"rows": 21})
    with pytest.raises(InputError, match="no free size of this name; those that it has are rows 1 to 20"):
        modelc.profile(package, dims={"lines": 2})


def test_commands_say_the_size(
    made: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], in_brief: None
) -> None:
    model, package = made
    assert command(["run", str(package), "--dim", "rows=7", "--outputs", str(tmp_path / "y.npz")]) == 0
    assert "y: float32[7, 6]" in (said := capsys.readouterr().out) and "of rows=7" in said
    assert command(["bench", str(package), "--seconds", "0.1"]) == 0
    assert "at rows=9, what matters, as rows=4 does: --dim or" in capsys.readouterr().out
    assert command(["inspect", str(package)]) == 0
    said = capsys.readouterr().out
    assert (
        "input x: float32[rows, 8]" in said and "rows: 1 to 20, by the inputs of each run; schedules for 9, 4" in said
    )
    assert command(["inspect", str(model)]) == 0
    assert "--dim rows=1..512" in capsys.readouterr().out
    assert command(["diff", str(package), str(package)]) == 0
    assert command(["run", str(package), "--dim", "rows=0"]) == 2


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--pad-dim", "rows"], "No such option '--pad-dim'. (Did you mean one of: '--dim'"),
        (["--shape", "scale=", "--shape", "scale="], "several --shape"),
        (["--precision", "auto", "--target", "sapphire-rapids"], "precision auto"),
        (["--database", "db.sqlite"], "--database"),
        (["--state", "x=y"], "expected lengths of a cache from 0 on"),
        (["--bound", "nothing=3"], "no value"),
        (["--dim", "rows=3..2"], "--dim"),
        (["--dim", "rows=1..9@12"], "sizes that matter among those of the dimension, 1 to 9; 12 is not"),
        (["--dim", "rows=2..8:2@4,3"], "2 to 8 in steps of 2; 3 is not"),
        (["--dim", "rows=1..9@"], "NAME=1..512@16,128"),
        (["--max-arena", "1B"], "--max-arena"),
    ],
)
def test_what_does_not_go_together_is_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str], sentence: str
) -> None:
    model, package = rows(tmp_path / "model.onnx"), tmp_path / "any.modelc"
    dim = [] if "--dim" in flags else ["--dim", "rows=1..9"]
    assert command(["compile", str(model), *dim, *flags, "-o", str(package), "--no-bench"]) == 2
    assert sentence in capsys.readouterr().err and not package.exists()


def test_other_verbs_want_a_number(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = rows(tmp_path / "model.onnx")
    assert command(["reduce", str(model), "--dim", "rows=1..9", "-o", str(tmp_path / "made")]) == 2
    assert "leaves a dimension open, as compile can, and tune of one model" in capsys.readouterr().err
    assert not (tmp_path / "made").exists()


def test_it_is_tuned_at_sizes(
    made: tuple[Path, Path], tmp_path: Path, first_finalist_wins: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, package = made
    monkeypatch.setattr("modelc.tune.any_size.gains", lambda untuned, tuned: True)
    (result,) = modelc.tune(model, budget="3", output=tmp_path / "tuned.modelc", dims={"rows": range(1, 21)})
    assert result.tuned and 0 < result.changed <= result.tasks and 0 < result.search.trials <= 3
    assert result.report is not None and result.report.passed and {"rows": 20} in result.report.sizes
    assert result.times.untuned_ms > 0 < result.times.ort_ms
    assert "geometric means over rows=2; rows=4; rows=9" in " ".join(result.notes)
    untuned, tuned = (json.loads((p / "choices.json").read_text()) for p in (package, tmp_path / "tuned.modelc"))
    assert untuned["tasks"].keys() == tuned["tasks"].keys() and untuned["tasks"] != tuned["tasks"]
    modelc.compile(model, output=tmp_path / "again.modelc", choices=tmp_path / "tuned.modelc")
    assert (tmp_path / "again.modelc/choices.json").read_bytes() == (
        tmp_path / "tuned.modelc/choices.json"
    ).read_bytes()


@pytest.mark.parametrize("flags", [["--runner", "env"], ["--explorer", "ppo"], ["--objective", "geomean"]])
def test_what_tuning_at_sizes_has_not_is_a_sentence(
    made: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str]
) -> None:
    assert command(["tune", str(made[0]), *flags, "--dim", "rows=1..9", "-o", str(tmp_path / "made")]) == 2
    said = capsys.readouterr().err
    assert "one package of any size, which does not go with" in said and "fix --dim rows=N" in said


def test_what_is_kept_goes_from_size_to_size(tmp_path: Path) -> None:
    model = rows(tmp_path / "model.onnx")
    result = modelc.compile(
        model,
        output=tmp_path / "any.modelc",
        dims={"rows": range(1, 21)},
        states={"old": "new"},
        constants={"scale": 2.0},
    )
    assert result.report is not None and result.report.passed
    w = np.random.default_rng(0).standard_normal((8, 6)).astype(np.float32)
    kept = 0.0
    with modelc.load(tmp_path / "any.modelc") as opened:
        for n in (3, 20, 1, 7):
            expected = 2 * feed(n)["x"] @ w
            np.testing.assert_allclose(opened.run({"x": feed(n)["x"]})["y"], expected + kept, rtol=1e-4, atol=1e-3)
            kept += float(expected.sum())
    assert modelc.verify(tmp_path / "any.modelc", model, check="quick").passed


def test_arrays_of_the_runs_shape_are_written_into(made: tuple[Path, Path]) -> None:
    with modelc.load(made[1]) as opened:
        assert opened.sizes == {"rows": range(1, 21)} and "x float32[rows, 8]" in repr(opened)
        expected = opened.run(feed(5))["y"].copy()
        out = np.zeros((5, 6), np.float32)
        assert opened.run(feed(5), out={"y": out})["y"] is out and np.array_equal(out, expected)
        with pytest.raises(LoadedError, match=r"'out' has float32 \[4, 6\] for output 'y', which is float32 \[5, 6\]"):
            opened.run(feed(5), out={"y": np.zeros((4, 6), np.float32)})
    session = InferenceSession(made[1])
    assert [t.shape for t in session.get_inputs()] == [[], [], ["rows", 8]]


@pytest.mark.skipif(
    not (shutil.which("qemu-aarch64-static") and shutil.which("aarch64-linux-gnu-gcc")),
    reason="needs qemu-user-static and gcc-aarch64-linux-gnu",
)
def test_another_machine_takes_every_size(made: tuple[Path, Path], tmp_path: Path) -> None:
    model, package = made
    dims = {"rows": range(1, 21)}
    modelc.compile(model, "cortex-a76", tmp_path / "arm.modelc", dims=dims, verify=False)
    for n in (1, 7):
        emulated, native = (modelc.run(one, feed(n))["y"] for one in (tmp_path / "arm.modelc", package))
        assert emulated.shape == (n, 6)
        np.testing.assert_allclose(emulated, native, rtol=1e-5, atol=1e-5)
    with pytest.raises(InputError, match="21 along 'rows'"):
        modelc.run(tmp_path / "arm.modelc", feed(21))


def test_a_configuration_says_ranges(tmp_path: Path) -> None:
    model = rows(tmp_path / "model.onnx")
    text = Path("configs/default.yaml").read_text().replace("dims: {}", "dims: {rows: 1..9}")
    (tmp_path / "own.yaml").write_text(text)
    modelc.compile(model, output=tmp_path / "any.modelc", config=tmp_path / "own.yaml", verify=False)
    choices = json.loads((tmp_path / "any.modelc/choices.json").read_text())
    assert choices["config"]["inputs"]["dims"] == {"rows": "1..9"}
    assert choices["free"] == {"rows": {"least": 1, "most": 9, "step": 1}}


def _set(*path: Any, to: Any) -> Callable[[Any], None]:
    def change(tree: Any) -> None:
        *folders, last = path
        for part in folders:
            tree = tree[part]
        tree[last] = to

    return change


EXPRESSIONS = ["lines", "rows * 2", "rows - 30", "-rows", "rows +", "(" * 300, "rows // 0", "rows ** 2", "x[rows]"]
EXPRESSIONS += ["rows" + " * rows" * 100, "+".join(["rows"] * 5000), "float32(2.5)", "size_rows(1, 99)", "", "1" * 900]
WRONG: list[Callable[[Any], None]] = [
    *(_set("outputs", 0, "extents", 0, to=text) for text in (*EXPRESSIONS, ["rows"], 1.5, None)),
    *(_set("steps", 0, "arguments", 0, "offset", to=text) for text in EXPRESSIONS if text != "rows * 2"),
    _set("steps", 0, "takes", to=["lines"]),
    _set("free", 0, "least", to=99),
    _set("free", 0, "most", to=21),
    _set("free", 0, "unit", to=2),
    _set("free", 0, "input", to=9),
    _set("free", 0, "axis", to=1),
    _set("free", to=[]),
    _set("inputs", 2, "extents", to=["rows"]),
]


@pytest.mark.parametrize("change", WRONG)
def test_wrong_expressions_are_refused(made: tuple[Path, Path], tmp_path: Path, change: Callable[[Any], None]) -> None:
    copy = tmp_path / "any.modelc"
    shutil.copytree(made[1], copy)
    manifest = json.loads((copy / "manifest.json").read_text())
    before = json.dumps(manifest)
    change(manifest["variants"][0])
    (copy / "manifest.json").write_text(json.dumps(manifest))
    assert json.dumps(manifest) != before
    with pytest.raises(PackageError):
        read_package(copy)
    with suppress(LoadedError):  # what its library says holds
        modelc.load(copy).close()


def test_sizes_of_runs(made: tuple[Path, Path]) -> None:
    package = read_package(made[1])
    plan = package.manifest.variants[0]
    assert usual_run(plan) == {"rows": 9} and run_with(plan, {"rows": 20}, "it") == {"rows": 20}
    fixed = at_inputs(package, feed(7))
    assert [t.shape for t in fixed.manifest.variants[0].outputs] == [(7, 6), ()] and fixed.dims == ({"rows": 7},)
    assert at_inputs(fixed, feed(7)) is fixed


@pytest.mark.parametrize(
    ("extent", "shown"),
    [("h * 8", "h"), ("h * 16", "h * 2"), ("h * 4", "h // 2"), ("h * 12 + 1", "h // 8 * 12 + 1"), ("h", "h // 8")],
)
def test_extents_are_shown_by_dimensions(extent: str, shown: str) -> None:
    assert extent_text(extent, {"h": 8}) == shown
    for h in (8, 80):
        assert eval(shown, {"h": h}) == eval(extent, {"h": h // 8})


def test_numbers_that_are_none() -> None:
    for text in ("float32(2.5)", "size_n(1, 9)", "n * n * n * n * n * n * n * n * n * n * n", "1" * 30):
        with pytest.raises(ValueError):
            number_of(text, {"n": Size("n", 1, 5)})


def test_data_of_several_rows_is_a_file(made: tuple[Path, Path], tmp_path: Path) -> None:
    write_npz(tmp_path / "f.npz", feed(6))
    assert command(["verify", str(made[1]), "--against", str(made[0]), "--inputs", str(tmp_path / "f.npz")]) == 0
