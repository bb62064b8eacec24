"""The library as programs use it: what an editor and mypy see, what it is given, what it says, how it is ended."""

from __future__ import annotations

import ast
import doctest
import inspect
import logging
import os
import pydoc
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import small_model as small
import yaml
from docs_models import HEAD, TEXTS
from onnx.parser import parse_model
from repository import ROOT

import modelc
from modelc import errors, runtime
from modelc.runtime.shown import table

ONE = {"x": [1, 3, 20, 24]}
SPACES = {
    "targets": ("names", "load", "probe", "check"),
    "database": ("show", "export", "import_", "merge", "best", "prune"),
}
FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{name: getattr(modelc, name) for name in modelc.__all__ if inspect.isfunction(getattr(modelc, name))},
    **{f"{space}.{name}": getattr(getattr(modelc, space), name) for space, names in SPACES.items() for name in names},
}
VERBS = {
    "compile",
    "build",
    "tune",
    "verify",
    "bench",
    "diff",
    "profile",
    "report",
    "run",
    "inspect",
    "reduce",
    "doctor",
}
MATRIX = "schema: 1\ntargets: [x86-64-v3]\nmodels:\n  net: {path: net.onnx, shapes: [{x: [1, 3, 20, 24]}]}\n"

SCRIPT = """
from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray

import modelc


def told(stage: str, text: str) -> None: ...


def everything(proto: onnx.ModelProto, data: dict[str, NDArray[np.float32]]) -> list[object]:
    compiled: modelc.CompileResult = modelc.compile(proto, output="m.modelc", shapes={"x": [1, 6]}, progress=told)
    modelc.compile(b"", "native", shapes=[{"x": (1, 6)}, {"x": (2, 6)}], dims={"n": [1, 2]}, max_drop=0.1)
    tuned: tuple[modelc.TuneResult, ...] = modelc.tune(["a.onnx", Path("b.onnx")], budget="5m")
    built: modelc.BuildResult = modelc.build("modelc.yaml", only=["*:*:*"])
    report: modelc.Report = modelc.verify("m.modelc", proto, inputs=data)
    with modelc.load("m.modelc", threads=1) as model:
        loaded: modelc.Model = model
        outputs: dict[str, NDArray[np.float32]] = loaded.run(data)
    timed: object = modelc.bench("m.modelc", against="ort", model="m.onnx")["ratio"]
    seen: object = modelc.profile("m.modelc")["kernels"], modelc.inspect(proto)["kind"]
    package: modelc.Package = modelc.read_package("m.modelc")
    page: Path = modelc.report("m.modelc", "m.html", progress=told)
    reduced: modelc.Reduced = modelc.reduce("m.onnx", "small.onnx")
    missing: list[object] = [finding.what for finding in modelc.doctor() if not finding.present]
    target: modelc.Target = modelc.targets.load(modelc.targets.names()[0])
    modelc.targets.check("t.yaml"), modelc.targets.probe()
    records: int = modelc.database.export("r.jsonl").records + modelc.database.import_("r.jsonl").new
    removed: int = modelc.database.prune(stale=True) + len(modelc.database.merge(["o.db"]))
    try:
        modelc.run("m.modelc", data)["y"].shape
    except modelc.ModelError as error:
        root: modelc.ModelcError = error
        missing.append(root)
    shown: object = modelc.database.show()["groups"], modelc.diff("m.modelc", package.path)["same"]
    results = [compiled.path, tuned, built.passed, report.passed, outputs, timed, seen, page, reduced, target.key]
    return [*missing, *results, records, removed, shown]


modelc.compile("m.onnx", shape={"x": [1, 6]})
modelc.verify("m.modelc").passed
"""


# --- what an editor sees -------------------------------------------------------------------------------------------


def test_every_verb_is_a_function_with_a_signature() -> None:
    assert VERBS <= set(FUNCTIONS) <= {*dir(modelc), *FUNCTIONS}
    for name, function in FUNCTIONS.items():
        signature = inspect.signature(function)
        assert not [p for p in signature.parameters.values() if p.kind in (p.VAR_KEYWORD, p.VAR_POSITIONAL)], name
        assert all(p.annotation is not p.empty for p in signature.parameters.values()), name


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_docstring_says_every_argument(name: str) -> None:
    if name == "register_rule":
        return
    text = inspect.getdoc(FUNCTIONS[name]) or ""
    arguments = re.findall(r"^    (\w+): ", text.partition("Args:\n")[2].partition("\n\n")[0], re.MULTILINE)
    assert arguments == list(inspect.signature(FUNCTIONS[name]).parameters)
    assert "\nReturns:\n" in text and "\nExample:\n    >>> " in text


def test_help_is_that_of_a_function() -> None:
    said = pydoc.plain(pydoc.render_doc(modelc.compile))
    assert "function compile in module modelc" in said and "compile(model: ModelSource" in said
    assert "PACKAGE CONTENTS" not in said and "FILE" not in said.splitlines()
    assert modelc.compile.stages.STAGES[0] == "import"  # what is in the room has its names still


def test_what_editors_see_is_what_there_is() -> None:
    (block,) = (node for node in ast.parse((ROOT / "modelc/__init__.py").read_text()).body if isinstance(node, ast.If))
    seen = {
        a.asname: (node.module, a.name) for node in block.body if isinstance(node, ast.ImportFrom) for a in node.names
    }
    assert seen == modelc._HOMES
    assert (ROOT / "modelc/py.typed").exists()


def test_importing_it_imports_nothing_else() -> None:
    program = "import sys, modelc; print([m for m in sys.modules if m.startswith(('modelc.', 'numpy', 'onnx'))])"
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=env)
    assert done.stdout == "[]\n", done.stderr


def test_mypy_is_content_with_a_program_that_uses_it_all(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(SCRIPT)
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--cache-dir", str(tmp_path / "cache")]
    command += ["--follow-imports=silent", "--no-color-output", "program.py"]  # as of what is installed
    env = {**os.environ, "MYPYPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=env)
    last = len(SCRIPT.splitlines())
    wrong = [line for line in done.stdout.splitlines() if ": error: " in line]
    assert [line.split(":")[1] for line in wrong] == [str(last - 1), str(last)], done.stdout + done.stderr
    assert '"shape"' in wrong[0] and '"model"' in wrong[1]


# --- what is wrong ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in FUNCTIONS if "." not in name and name != "doctor"])
def test_a_misspelt_argument_is_named(name: str) -> None:
    last = list(inspect.signature(FUNCTIONS[name]).parameters)[-1]
    with pytest.raises(TypeError, match=rf"^modelc\.{name}\(\) .*'{last}s'; did you mean '{last}'\?$"):
        FUNCTIONS[name](**{f"{last}s": 1})


def test_an_argument_that_is_missing_is_named() -> None:
    with pytest.raises(TypeError, match=r"^modelc\.compile\(\) missing a required argument: 'model'"):
        modelc.compile()  # type: ignore[call-arg]


def test_errors_have_one_root(tmp_path: Path) -> None:
    kinds = [getattr(errors, name) for name in dir(errors) if name.endswith("Error")]
    assert all(issubclass(kind, modelc.ModelcError) for kind in kinds if kind.__module__.startswith("modelc"))
    assert runtime.ModelError is modelc.ModelError is errors.ModelError
    with pytest.raises(modelc.ModelcError, match="cannot open the package"):
        modelc.load(tmp_path / "none.modelc")


@pytest.mark.parametrize("shapes", ["x", {"x": "1,6"}, {"x": 3}, [[1, 2]], {"x": [1.5]}])
def test_shapes_that_are_none(shapes: Any) -> None:
    with pytest.raises(modelc.InputError, match="expected whole numbers by input"):
        modelc.compile(small.model(), shapes=shapes)
    with pytest.raises(modelc.InputError, match="expected whole numbers by input"):
        modelc.inspect(small.model(), shapes=shapes)


def test_dims_that_are_none() -> None:
    with pytest.raises(modelc.InputError, match="expected a whole number for each dimension"):
        modelc.compile(small.model(), dims={"batch": "8"})  # type: ignore[dict-item]


@pytest.mark.parametrize("number", ["x", 1.5, True, -1, 1 << 70, [1]], ids=str)
def test_numbers_that_are_none(number: Any) -> None:
    model, package = small.model(), small.package()
    for function, given, argument in (
        (modelc.compile, (model,), "threads"),
        (modelc.compile, (model,), "run_threads"),
        (modelc.tune, (model,), "threads"),
        (modelc.tune, (model,), "seed"),
        (modelc.verify, (package, model), "seed"),
        (modelc.verify, (package, model), "samples"),
        (modelc.bench, (package,), "threads"),
        (modelc.profile, (package,), "threads"),
        (modelc.profile, (package,), "repeat"),
        (modelc.report, (package, "none/report.html"), "threads"),
        (modelc.run, (package,), "threads"),
        (modelc.reduce, (model,), "seed"),
        (modelc.build, (), "jobs"),
    ):
        if (argument, number) == ("samples", 1 << 70):
            continue
        with pytest.raises(modelc.InputError, match=rf"got {argument}=.*; expected a whole number from \d"):
            function(*given, **{argument: number})  # type: ignore[operator]
    for argument in ("threads", "seed"):
        sentence = rf"{argument} is .*; expected a whole number from 0 to \d"
        with pytest.raises(modelc.ModelError, match=sentence):
            modelc.load(package, **{argument: number})
        with pytest.raises(modelc.ModelError, match=sentence):
            runtime.load(package, **{argument: number})
    with modelc.load(package, threads=np.int64(1)) as opened:  # type: ignore[arg-type]
        assert opened.threads == 1


def test_measures_that_are_none() -> None:
    with pytest.raises(modelc.InputError, match="got seconds='3'; expected a number"):
        modelc.bench(small.package(), seconds="3")  # type: ignore[arg-type]
    with pytest.raises(modelc.InputError, match=r"got rtol='0\.1'; expected a number"):
        modelc.verify(small.package(), small.model(), rtol="0.1")  # type: ignore[arg-type]
    with pytest.raises(modelc.InputError, match="got max_drop='1%'; expected a number"):
        modelc.compile(small.model(), precision="int8", calibrate="no.npz", max_drop="1%")  # type: ignore[arg-type]


def test_an_engine_that_is_none() -> None:
    with pytest.raises(modelc.InputError, match=r"cannot compare with 'orz'.*Did you mean ort"):
        modelc.bench(small.package(), against="orz")


def test_what_judges_a_calibration_needs_one() -> None:
    with pytest.raises(modelc.ConfigError, match=r"max_drop is 0\.5, which judges a calibration: give calibrate too"):
        modelc.compile(small.model(), max_drop=0.5)
    with pytest.raises(modelc.InputError, match=r"no\.npz"):
        modelc.compile(small.model(), shapes=ONE, precision="int8", calibrate="no.npz", max_drop=0.5)


# --- models in memory ------------------------------------------------------------------------------------------------


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder for temporary files, in which nothing is left."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield folder
    assert list(folder.glob("modelc-tmp-model-*")) == []


@pytest.mark.parametrize("shapes", [ONE, [ONE], {"x": np.array([1, 3, 20, 24])}])
def test_shapes_are_one_mapping_or_several(shapes: Any) -> None:
    result = modelc.compile(small.model(), shapes=shapes, stop_after="simplify")
    assert result.path is None and list(result.seconds) == ["import", "simplify"]


@pytest.mark.parametrize("read", [Path.read_bytes, onnx.load], ids=["bytes", "ModelProto"])
def test_a_model_may_be_in_memory(read: Callable[[Path], Any], temporary: Path, tmp_path: Path) -> None:
    model = read(small.model())
    made = modelc.compile(model, output=tmp_path / "named.modelc", shapes=ONE, stop_after="package", database=False)
    assert made.path is not None and made.path.name == "named.modelc"
    assert modelc.read_package(tmp_path / "named.modelc").manifest.name == "named"
    assert modelc.inspect(model)["free"] == modelc.inspect(small.model())["free"]
    assert modelc.verify(small.package(), model, check="quick", samples=1).passed


def test_what_is_no_model(temporary: Path) -> None:
    for function in (modelc.compile, modelc.tune, modelc.inspect, modelc.reduce):
        with pytest.raises(TypeError, match=r"expected a model: its path, the bytes of an ONNX file, or .*; found int"):
            function(3)  # type: ignore[operator]
    with pytest.raises(modelc.ModelError):
        modelc.compile(b"none")


# --- progress, cancelling, logging -----------------------------------------------------------------------------------


class Enough(Exception):
    """A program's own."""


def test_what_progress_raises_ends_the_call(tmp_path: Path, temporary: Path) -> None:
    stages: list[str] = []

    def told(stage: str, text: str) -> None:
        stages.append(stage)
        if stage == "codegen":
            raise Enough("for today")

    with pytest.raises(Enough, match="for today"):
        modelc.compile(small.model().read_bytes(), output=tmp_path / "p", shapes=ONE, progress=told, database=False)
    assert stages[0] == "import" and stages[-1] == "codegen" and not (tmp_path / "p").exists()
    with pytest.raises(Enough):
        modelc.verify(small.package(), small.model(), progress=lambda stage, text: told("codegen", text))
    with pytest.raises(Enough):
        modelc.bench(small.package(), progress=lambda stage, text: told("codegen", text))


def test_progress_takes_two_texts() -> None:
    for function, given in ((modelc.compile, (small.model(),)), (modelc.diff, (small.package(), small.package()))):
        with pytest.raises(TypeError, match=r"tells progress two texts.*expected a function progress\(stage, text\)"):
            function(*given, progress=lambda text: None)  # type: ignore[operator]


def test_it_logs_and_prints_nothing(caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]) -> None:
    caplog.set_level(logging.INFO, "modelc")
    modelc.compile(small.model(), "x86-64-v3", shapes=ONE, stop_after="simplify", database=False)
    said = [tuple(record.getMessage().split()[:2]) for record in caplog.records]
    assert list(dict.fromkeys(said)) == [("compile:", "import"), ("compile:", "simplify")]
    assert capfd.readouterr() == ("", "")


# --- what results look like ------------------------------------------------------------------------------------------


def test_results_say_what_they_are() -> None:
    package = modelc.read_package(small.package())
    assert re.fullmatch(
        r"Package\('.*net.modelc' for native: x float32\[1, 3, 20, 24\] -> y float32\[1, 10\]; .*; \d+ kernels in \d+ "
        r"steps; parameters .*KB, library .*KB, arena .*KB\)",
        repr(package),
    )
    shown = package._repr_html_()
    assert shown.count("<tr>") == len(package.manifest.variants[0].steps) + 1 and "width:100.0%" in shown
    with modelc.load(small.package(), threads=1) as model:
        assert repr(model).startswith("Model('net': x float32[1, 3, 20, 24] -> y float32[1, 10]; ")
        assert model._repr_html_().count("<tr>") == shown.count("<tr>")
    assert repr(model) == "Model('net', closed)" and "closed" in model._repr_html_()
    report = modelc.verify(small.package(), small.model(), check="quick", samples=1)
    assert repr(report).startswith("Report(passed: agrees with onnxruntime")
    assert report._repr_html_().count("<tr>") == 1 + len(report.outputs) + 1 + len(report.kernels)
    result = modelc.CompileResult(small.package(), "native", {"import": 1.0, "codegen": 3.0}, 1, 4, 5, report=report)
    assert "for native: 4 kernels in 5 steps; " in repr(result) and "; 4.0 s; agrees with" in repr(result)
    assert "width:33.3%" in result._repr_html_() and shown in result._repr_html_()
    assert repr(replace(result, path=None)) == "CompileResult(no package; import, codegen in 4.0 s)"


def test_what_is_shown_is_text() -> None:
    """Whatever a model calls its nodes, or a folder is called."""
    package = replace(modelc.read_package(small.package()), path=Path("<script>alert(1)</script>"))
    assert "<script>" not in package._repr_html_() and "&lt;script&gt;" in package._repr_html_()
    assert table(["<i>"], [["<b>&"]], [0.0]).count("<i>") == 0 and "&lt;b&gt;&amp;" in table(["n"], [["<b>&"]])


@pytest.mark.parametrize(("rows", "left"), [(1, ""), (200, ""), (201, "and 1 more"), (950, "and 750 more")])
def test_long_tables_say_how_many_rows_are_left_out(rows: int, left: str) -> None:
    shown = table(["n"], [[n] for n in range(rows)])
    assert shown.count("<tr>") == 1 + min(rows, 200) and re.findall("and .* more", shown) == [left] * bool(left)


# --- the examples ----------------------------------------------------------------------------------------------------


def test_examples_of_docstrings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    small.conv_net(Path("net.onnx"))
    Path("modelc.yaml").write_text(MATRIX)
    onnx.save(parse_model(HEAD + TEXTS["FAILING"]), "failing.onnx")
    machine = yaml.safe_load(modelc.targets.load("cortex-a72").to_yaml())
    Path("machine.yaml").write_text(yaml.safe_dump({**machine, "intrinsics": []}))
    runner = doctest.DocTestRunner(verbose=False, optionflags=doctest.REPORT_NDIFF)
    said: list[str] = []
    for name, function in FUNCTIONS.items():
        example = doctest.DocTestParser().get_doctest(
            inspect.getdoc(function) or "", {"modelc": modelc, "np": np}, name, None, None
        )
        assert example.examples or name == "register_rule", name
        runner.run(example, out=said.append)
    assert runner.summarize(verbose=False).failed == 0, "".join(said)
