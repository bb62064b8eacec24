"""Sessions on ONNX models: each member beside ONNX Runtime's, and what it raises."""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import session_models as models
from repository import ROOT
from session_models import FEED

import modelc
import modelc.session as ours
from modelc.errors import ModelcError

ENGINES = (ours, onnxruntime)
X = FEED["x"]


def quiet() -> Any:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    return options


@pytest.fixture(scope="module")
def sessions() -> tuple[Any, Any]:
    """Of modelc and of ONNX Runtime, on the same model."""
    model = models.described()
    return ours.InferenceSession(model), onnxruntime.InferenceSession(model, quiet())


def described(session: Any) -> list[tuple[Any, ...]]:
    listed = (*session.get_inputs(), *session.get_outputs(), *session.get_overridable_initializers())
    return [(arg.name, arg.type, arg.shape) for arg in listed]


def test_inputs_and_outputs_are_described_alike(sessions: tuple[Any, Any]) -> None:
    assert described(sessions[0]) == described(sessions[1])
    assert described(sessions[0])[0] == ("x", "tensor(float)", ["batch", 3])


def test_the_model_is_described_alike(sessions: tuple[Any, Any]) -> None:
    mine, theirs = (session.get_modelmeta() for session in sessions)
    for name in ("graph_name", "producer_name", "domain", "version", "description", "graph_description"):
        assert getattr(mine, name) == getattr(theirs, name) != "", name
    assert mine.custom_metadata_map == theirs.custom_metadata_map == {"character": "a\nb\n☃", "names": '{"0": "cat"}'}


def test_providers_and_options_are_said_alike(sessions: tuple[Any, Any]) -> None:
    for session in sessions:
        assert session.get_providers() == ["CPUExecutionProvider"]
        assert session.get_provider_options() == {"CPUExecutionProvider": {}}
        assert session.get_session_options().intra_op_num_threads == 0
        assert session.set_providers(["CPUExecutionProvider"]) is None
        assert session.disable_fallback() is session.enable_fallback() is None
        assert session.end_profiling() == "" and session.get_profiling_start_time_ns() == 0


TAKEN: dict[str, tuple[Any, dict[str, Any]]] = {
    "arrays": (None, FEED),
    "another batch": (["y"], {**FEED, "x": np.ones((3, 3), np.float32)}),
    "a list of whole numbers": (["y"], {**FEED, "x": [[1, 2, 3]]}),
    "a list of numbers": (["y"], {**FEED, "x": [[1.5, 2, 3]]}),
    "a list of arrays": (["y"], {**FEED, "x": [X[0], X[1]]}),
    "columns first": (["y"], {**FEED, "x": np.asfortranarray(np.arange(6, dtype=np.float32).reshape(2, 3))}),
    "no rows": (None, {**FEED, "x": X[:0]}),
    "no outputs named": ([], FEED),
    "a tuple of names": (("v", "y"), FEED),
    "an output twice": (["y", "y"], FEED),
    "an initialiser with its own value": (["y"], {**FEED, "w": np.full(3, 2, np.float32)}),
}


@pytest.mark.parametrize("case", TAKEN)
def test_runs_give_the_same(sessions: tuple[Any, Any], case: str) -> None:
    mine, theirs = (session.run(*TAKEN[case]) for session in sessions)
    assert len(mine) == len(theirs)
    for a, b in zip(mine, theirs, strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape
        np.testing.assert_allclose(a, b, rtol=1e-6)


def test_numbers_are_taken_where_an_array_has_none(sessions: tuple[Any, Any]) -> None:
    """ONNX Runtime refuses them."""
    for number in (5, np.int64(5), [5]):
        (z,) = sessions[0].run(["z"], {**FEED, "flag": number})
        assert z.item() == 5
    (y,) = sessions[0].run(["y"], {**FEED, "x": X.astype(">f4")})
    assert np.array_equal(y, 2 * X + 1)


REFUSED: dict[str, tuple[Any, Any]] = {
    "float64": (None, {**FEED, "x": X.astype(np.float64)}),
    "a dimension less": (None, {**FEED, "x": X[0]}),
    "another width": (None, {**FEED, "x": X[:, :2]}),
    "an input that is missing": (None, {"x": X}),
    "an input that is not there": (None, {**FEED, "q": X}),
    "a constant": (None, {**FEED, "b": X[0]}),
    "an output that is not there": (["q"], FEED),
    "a name for the outputs": ("y", FEED),
    "an inner value": (["m"], FEED),
    "a text": (None, {**FEED, "x": "abc"}),
    "a fraction for a whole number": (None, {**FEED, "flag": 3.5}),
}


def kind(error: BaseException) -> str:
    """What a program catches: a class of ONNX Runtime's, or one of Python's own."""
    names = [cls.__name__ for cls in type(error).__mro__]
    return next(name for name in names if name in vars(ours.capi.onnxruntime_pybind11_state) or name[0:1].isupper())


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused_is_caught_alike(sessions: tuple[Any, Any], case: str) -> None:
    with pytest.raises(Exception) as theirs:
        sessions[1].run(*REFUSED[case])
    with pytest.raises(Exception) as mine:
        sessions[0].run(*REFUSED[case])
    assert kind(theirs.value) in [cls.__name__ for cls in type(mine.value).__mro__]
    assert isinstance(mine.value, ModelcError | TypeError) and len(str(mine.value)) > 20


def test_sentences_say_what_was_expected(sessions: tuple[Any, Any]) -> None:
    for case, words in (
        ("another width", r"input 'x' has the shape \[2, 2\]; the model takes \['batch', 3\]"),
        ("an input that is missing", "the inputs 'flag', 'u' are missing; the model takes 'x', 'flag', 'u'"),
        ("an output that is not there", "there is no output 'q'; the model's outputs are y, z, v"),
    ):
        with pytest.raises(ours.capi.onnxruntime_pybind11_state.InvalidArgument, match=words):
            sessions[0].run(*REFUSED[case])
    with pytest.raises(ours.capi.onnxruntime_pybind11_state.InvalidArgument, match=r"'w' is the constant \[2.0, 2.0"):
        sessions[0].run(None, {**FEED, "w": X[0]})


def empty_file(folder: Path) -> Path:
    (folder / "empty.onnx").touch()
    return folder / "empty.onnx"


NO_MODELS: dict[str, Callable[[Path], Any]] = {
    "no file": lambda folder: folder / "none.onnx",
    "a folder": str,
    "garbage": lambda _: b"garbage",
    "no bytes": lambda _: b"",
    "an empty file": empty_file,
    "None": lambda _: None,
    "a number": lambda _: 3,
    "a bytearray": lambda _: bytearray(b"x"),
}


@pytest.mark.parametrize("case", NO_MODELS)
def test_what_is_no_model_is_caught_alike(case: str, tmp_path: Path) -> None:
    raised = []
    for engine in ENGINES:
        with pytest.raises(Exception) as refusal:
            engine.InferenceSession(NO_MODELS[case](tmp_path))
        raised.append(refusal.value)
    assert kind(raised[1]) in [cls.__name__ for cls in type(raised[0]).__mro__]


def test_a_model_that_cannot_be_compiled_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(ours.capi.onnxruntime_pybind11_state.Fail, match="Frobnicate") as refusal:
        ours.InferenceSession(models.foreign())
    assert isinstance(refusal.value, modelc.ModelError)


def test_what_cannot_be_obeyed_is_a_sentence(tmp_path: Path) -> None:
    model, options = models.scaled(2), ours.SessionOptions()
    with pytest.raises(modelc.ModelError, match="packages run on the CPU: providers have CPUExecutionProvider"):
        ours.InferenceSession(model, providers=["CUDAExecutionProvider"])
    with pytest.warns(UserWarning, match="CUDAExecutionProvider is not available"):
        ours.InferenceSession(model, providers=["CUDAExecutionProvider", ("CPUExecutionProvider", {})])
    with pytest.raises(modelc.ModelError, match=r"operators in /x\.so are ONNX Runtime's to call"):
        options.register_custom_ops_library("/x.so")
    with pytest.raises(modelc.ModelError, match="'w' cannot be replaced"):
        options.add_initializer("w", X)
    options.optimized_model_filepath = "there.onnx"
    with pytest.raises(modelc.ModelError, match=r"no optimised model can be written to there.onnx"):
        ours.InferenceSession(model, options)
    ort = ours.SessionOptions()
    ort.add_session_config_entry("session.load_model_format", "ORT")
    with pytest.raises(modelc.ModelError, match="ORT's own format"):
        ours.InferenceSession(model, ort)


def test_options_have_the_same_defaults() -> None:
    for name in ("SessionOptions", "RunOptions"):
        mine, theirs = (getattr(engine, name)() for engine in ENGINES)
        attributes = [a for a in dir(theirs) if a[0] != "_" and not callable(getattr(theirs, a))]
        assert len(attributes) >= 5
        for attribute in attributes:
            value = getattr(theirs, attribute)
            assert getattr(mine, attribute) == (int(value) if hasattr(value, "__members__") else value), attribute
        with pytest.raises(AttributeError):
            mine.no_such_option = 1
        with pytest.raises(TypeError):
            mine.log_severity_level = "much"
    options = ours.SessionOptions()
    options.graph_optimization_level = ours.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.execution_mode = ours.ExecutionMode.ORT_PARALLEL
    options.add_session_config_entry("session.set_denormal_as_zero", "1")
    assert options.get_session_config_entry("session.set_denormal_as_zero") == "1"
    with pytest.raises(RuntimeError, match="has no configuration entry 'x'"):
        options.get_session_config_entry("x")


def test_enumerations_have_the_same_members() -> None:
    for name in ("GraphOptimizationLevel", "ExecutionMode", "ExecutionOrder"):
        mine, theirs = (getattr(engine, name).__members__ for engine in ENGINES)
        assert {key: int(value) for key, value in mine.items()} == {key: int(v) for key, v in theirs.items()}


def test_the_module_has_its_members() -> None:
    assert ours.get_available_providers() == ours.get_all_providers() == ["CPUExecutionProvider"]
    assert ours.get_device() == onnxruntime.get_device() == "CPU"
    assert ours.get_version_string() == ours.__version__
    for engine in ENGINES:
        assert engine.set_default_logger_severity(3) is engine.set_default_logger_verbosity(0) is None
        assert engine.set_seed(1) is None
        with pytest.raises(RuntimeError):
            engine.set_default_logger_severity(9)
    with pytest.raises(AttributeError, match="has no attribute 'ModelCompiler'"):
        ours.ModelCompiler  # noqa: B018
    assert {"InferenceSession", "SessionOptions", "OrtValue", "capi", "install"} <= set(dir(ours))


def test_threads_and_sizes_are_obeyed() -> None:
    options = ours.SessionOptions()
    options.intra_op_num_threads = 1
    options.add_free_dimension_override_by_name("n", 4)
    session = ours.InferenceSession(models.scaled(3), options)
    assert session.get_inputs()[0].shape == session.get_outputs()[0].shape == [4]
    (y,) = session.run(None, {"x": np.ones(4, np.float32)})
    assert y.tolist() == [3] * 4
    assert [model.threads for model in session._source.opened()] == [1]
    with pytest.raises(modelc.ModelError, match="shape"):
        session.run(None, {"x": np.ones(5, np.float32)})


def test_inputs_that_steer_are_known_when_it_is_compiled() -> None:
    """Of the branches only one makes sense for the other input."""
    model = models.branching()
    session, theirs = ours.InferenceSession(model), onnxruntime.InferenceSession(model, quiet())
    for loud, count in ((True, 4), (False, 9), (True, 4)):
        feed = {"x": np.arange(count, dtype=np.float32), "loud": np.array(loud)}
        assert np.array_equal(session.run(None, feed)[0], theirs.run(None, feed)[0])


@pytest.mark.parametrize("engine", ENGINES)
def test_values_of_their_own(engine: Any, sessions: tuple[Any, Any]) -> None:
    value = engine.OrtValue.ortvalue_from_numpy(X.copy())
    assert (value.shape(), value.data_type(), value.element_type()) == ([2, 3], "tensor(float)", 1)
    assert value.device_name() == "cpu" and value.has_value() and value.is_tensor()
    assert not value.is_sparse_tensor() and not value.is_tensor_sequence() and value.tensor_size_in_bytes() == 24
    assert np.array_equal(value.numpy(), X) and value.data_ptr()
    value.update_inplace(2 * X)
    assert np.array_equal(np.asarray(value), 2 * X)
    empty = engine.OrtValue.ortvalue_from_shape_and_type([2, 3], np.float32)
    assert empty.numpy().shape == (2, 3) and empty.numpy().dtype == np.float32
    with pytest.raises(RuntimeError):
        engine.OrtValue.ortvalue_from_numpy([1, 2])
    session = sessions[ENGINES.index(engine)]
    values = {name: engine.OrtValue.ortvalue_from_numpy(array) for name, array in {**FEED, "x": 2 * X}.items()}
    (y,) = session.run_with_ort_values(["y"], values)
    assert isinstance(y, engine.OrtValue) and np.array_equal(y.numpy(), 4 * X + 1)
    assert np.array_equal(session.run(["y"], {**FEED, "x": value})[0], 4 * X + 1)


@pytest.mark.parametrize("engine", ENGINES)
def test_bindings(engine: Any, sessions: tuple[Any, Any]) -> None:
    session = sessions[ENGINES.index(engine)]
    binding, place, given = session.io_binding(), np.zeros((2, 3), np.float32), 3 * X
    with pytest.raises(RuntimeError):
        binding.bind_cpu_input("q", X)
    for name, array in FEED.items():
        binding.bind_cpu_input(name, array)
    binding.bind_output("y")
    session.run_with_iobinding(binding)
    assert np.array_equal(binding.copy_outputs_to_cpu()[0], 2 * X + 1)
    assert np.array_equal(binding.get_outputs()[0].numpy(), 2 * X + 1)
    binding.clear_binding_outputs()
    binding.bind_input("x", "cpu", 0, np.float32, given.shape, given.ctypes.data)
    binding.bind_output("y", "cpu", 0, np.float32, place.shape, place.ctypes.data)
    session.run_with_iobinding(binding)
    assert np.array_equal(place, 6 * X + 1)
    value, target = (engine.OrtValue.ortvalue_from_numpy(array) for array in (X.copy(), place))
    binding.bind_ortvalue_input("x", value)
    binding.bind_ortvalue_output("y", target)
    binding.synchronize_inputs()
    session.run_with_iobinding(binding, engine.RunOptions())
    binding.synchronize_outputs()
    assert np.array_equal(target.numpy(), 2 * X + 1)
    binding.clear_binding_inputs()


@pytest.mark.parametrize("engine", ENGINES)
def test_a_run_beside_the_program(engine: Any, sessions: tuple[Any, Any]) -> None:
    answers: queue.Queue[tuple[Any, ...]] = queue.Queue()
    session = sessions[ENGINES.index(engine)]
    for feed in (FEED, {**FEED, "x": X[:, :2]}):
        session.run_async(["y"], feed, lambda *answer: answers.put(answer), "mine")
        outputs, user, error = answers.get(timeout=60)
        assert user == "mine" and bool(error) == (len(outputs) == 0) == (feed is not FEED)
    with pytest.raises(ValueError, match="missing"):
        session.run_async(["y"], {}, print, None)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_run_that_is_not_to_begin(engine: Any, sessions: tuple[Any, Any]) -> None:
    options = engine.RunOptions()
    options.add_run_config_entry("key", "value")
    assert options.get_run_config_entry("key") == "value"
    options.terminate = True
    with pytest.raises(Exception) as refusal:
        sessions[ENGINES.index(engine)].run(None, FEED, options)
    assert kind(refusal.value) == "Fail"


def test_profiles_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    options = ours.SessionOptions()
    options.enable_profiling = True
    session = ours.InferenceSession(models.scaled(2), options)
    assert session.get_profiling_start_time_ns() > 0
    for _ in range(3):
        session.run(None, {"x": np.ones(1000, np.float32)})
    name = session.end_profiling()
    (event,) = json.loads((tmp_path / name).read_text())
    assert name.startswith("onnxruntime_profile_") and event["cat"] == "Node" and event["args"]["calls"] == 3
    assert session.end_profiling() == ""


PROGRAM = """\
import modelc.session
modelc.session.install()
import onnxruntime, onnxruntime as ort
from onnxruntime import GraphOptimizationLevel, InferenceSession, SessionOptions
from onnxruntime.capi import _pybind_state as state
from onnxruntime.capi.onnxruntime_pybind11_state import Fail, InvalidArgument, NoSuchFile
import onnxruntime.capi.onnxruntime_inference_collection
assert onnxruntime is modelc.session and state.get_device() == "CPU" and onnxruntime.capi._pybind_state is state
try:
    InferenceSession("nowhere.onnx")
except onnxruntime.capi.onnxruntime_pybind11_state.NoSuchFile as error:
    print(error)
modelc.session.install()
for name in [name for name in sys.modules if name.startswith("onnxruntime")]:
    del sys.modules[name]
import onnxruntime
try:
    modelc.session.install()
except Fail as error:
    print(error)
"""


def test_it_takes_the_place_of_onnxruntime(tmp_path: Path) -> None:
    command = [sys.executable, "-c", f"import sys\nsys.path.insert(0, {str(ROOT)!r})\n{PROGRAM}"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert first == f"{tmp_path}/nowhere.onnx does not exist; expected an ONNX file or a package"
    assert second.startswith("onnxruntime has been imported already: call modelc.session.install() before")


def test_a_package_is_opened_too(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(models.branching())
    modelc.compile(tmp_path / "m.onnx", output=tmp_path / "m.modelc", shapes={"x": (6,)}, constants={"loud": True})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        session = ours.InferenceSession(f"{tmp_path}/m.modelc/")
    x = np.arange(6, dtype=np.float32)
    assert [arg.name for arg in session.get_inputs()] == ["x"]
    for more in ({}, {"loud": np.array(True)}, {"loud": True}):
        assert session.run(None, {"x": x, **more})[0].shape == (3, 2)
    with pytest.raises(modelc.ModelError, match="the input 'loud' is the constant True in what was compiled, and was"):
        session.run(None, {"x": x, "loud": False})
    assert session.get_modelmeta().graph_name == "branching"
    session.close()
