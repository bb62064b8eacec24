"""Sizes that are computed from data: bounds that operators give, bounds that a user says, and runs that go beyond."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto
from sized_models import Case, Feeds, N, agree, ints, saved

import modelc
from modelc.cli import main
from modelc.compile.config import load_config
from modelc.errors import ConfigError, ModelcError, ModelError
from modelc.frontend.onnx import import_model
from modelc.ir.graph import actual
from modelc.ops import evaluate_graph
from modelc.runtime import ModelError as LoadedError
from modelc.runtime import load

F, I = TensorProto.FLOAT, TensorProto.INT64


def weights(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return (rng.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))).astype(np.float32)


TEXT, CHANNELS, STRIDE = 6, 4, 4


def vits() -> Case:
    """As VITS speaks: how long every symbol lasts, a path of so many frames, numbers drawn for each, a flow of gated
    convolutions backwards, and a decoder that makes samples of frames."""
    rng = np.random.default_rng(0)
    convolve = {"pads": [1, 1], "kernel_shape": [3]}
    nodes = [
        N("Gather", ["embed", "text"], ["e"]),
        N("Transpose", ["e"], ["h"], perm=[0, 2, 1]),
        N("Conv", ["h", "w_last"], ["logw"], **convolve),
        N("Exp", ["logw"], ["w"]),
        N("Mul", ["w", "scale"], ["slower"]),
        N("Ceil", ["slower"], ["lasts"]),  # [1, 1, text]
        N("ReduceSum", ["lasts", "axes12"], ["total"], keepdims=0),
        N("Clip", ["total", "one_f"], ["some"]),
        N("Cast", ["some"], ["lengths"], to=I),
        N("ReduceMax", ["lengths"], ["longest"], keepdims=0),
        N("Range", ["zero", "longest", "one_i"], ["frames"]),
        N("Unsqueeze", ["frames", "axis0"], ["frames1"]),
        N("Unsqueeze", ["lengths", "axis1"], ["lengths1"]),
        N("Less", ["frames1", "lengths1"], ["there"]),
        N("Unsqueeze", ["there", "axis1"], ["there1"]),
        N("Cast", ["there1"], ["mask"], to=F),  # [1, 1, frames]
        # the path: which frame is which symbol's
        N("CumSum", ["lasts", "two_i"], ["until"]),
        N("Reshape", ["until", "column"], ["until1"]),
        N("Shape", ["mask"], ["shape"]),
        N("Gather", ["shape", "two_i"], ["width"], axis=0),
        N("Range", ["zero", "width", "one_i"], ["across"]),
        N("Cast", ["across"], ["across_f"], to=F),
        N("Unsqueeze", ["across_f", "axis0"], ["across1"]),
        N("Less", ["across1", "until1"], ["before"]),
        N("Cast", ["before"], ["before_f"], to=F),
        N("Unsqueeze", ["width", "axis0"], ["width1"]),
        N("Concat", ["one_text", "width1"], ["path_shape"], axis=0),
        N("Reshape", ["before_f", "path_shape"], ["steps"]),
        N("Pad", ["steps", "down"], ["shifted"]),
        N("Slice", ["shifted", "axis0", "minus1", "axis1"], ["last"]),
        N("Sub", ["steps", "last"], ["path"]),
        N("Transpose", ["path"], ["path_t"], perm=[0, 2, 1]),
        N("MatMul", ["e", "w_mean"], ["mean"]),
        N("MatMul", ["path_t", "mean"], ["means"]),
        N("Transpose", ["means"], ["means_t"], perm=[0, 2, 1]),
        N("RandomNormalLike", ["means_t"], ["drawn"]),
        N("Mul", ["drawn", "noise"], ["spread"]),
        N("Add", ["means_t", "spread"], ["z"]),
        # a step of the flow
        N("Slice", ["z", "minus1", "least", "axis1", "minus1"], ["flipped"]),
        N("Split", ["flipped"], ["z0", "z1"], axis=1),
        N("Mul", ["z0", "mask"], ["z0m"]),
        N("Conv", ["z0m", "w_in"], ["gates"], dilations=[2], pads=[2, 2]),
        N("Split", ["gates"], ["ga", "gb"], axis=1),
        N("Tanh", ["ga"], ["gt"]),
        N("Sigmoid", ["gb"], ["gs"]),
        N("Mul", ["gt", "gs"], ["gated"]),
        N("Conv", ["gated", "w_out"], ["offset"], **convolve),
        N("Sub", ["z1", "offset"], ["z2"]),
        N("Concat", ["z0", "z2"], ["zz"], axis=1),
        N("Mul", ["zz", "mask"], ["masked"]),
        # the decoder
        N("ConvTranspose", ["masked", "w_up"], ["up"], strides=[STRIDE], pads=[2, 2]),
        N("LeakyRelu", ["up"], ["active"], alpha=0.1),
        N("Conv", ["active", "w_res"], ["res"], **convolve),
        N("Add", ["res", "up"], ["sum"]),
        N("Conv", ["sum", "w_wave"], ["raw"], **convolve),
        N("Tanh", ["raw"], ["wave"]),
    ]
    constants = {
        "embed": weights(rng, 20, CHANNELS),
        "w_last": weights(rng, 1, CHANNELS, 3),
        "w_mean": weights(rng, CHANNELS, CHANNELS),
        "w_in": weights(rng, CHANNELS, CHANNELS // 2, 3),
        "w_out": weights(rng, CHANNELS // 2, CHANNELS // 2, 3),
        "w_up": weights(rng, CHANNELS, 2, 2 * STRIDE),
        "w_res": weights(rng, 2, 2, 3),
        "w_wave": weights(rng, 1, 2, 3),
        "noise": np.float32(0.5),
        "one_f": np.float32(1),
        "zero": ints(0)[0],
        "one_i": ints(1)[0],
        "two_i": ints(2)[0],
        "axis0": ints(0),
        "axis1": ints(1),
        "axes12": ints(1, 2),
        "minus1": ints(-1),
        "least": ints(-(2**62)),
        "column": ints(TEXT, 1),
        "one_text": ints(1, TEXT),
        "down": ints(0, 1, 0, 0, 0, 0),
    }
    text = rng.integers(0, 20, (1, TEXT))
    return Case(
        nodes,
        ("wave", "lengths"),
        constants,
        [{"text": text, "scale": np.asarray(s, np.float32)} for s in (1, 0.3, 2, 0.1)],
    )


@pytest.fixture(scope="module")
def speaks(tmp_path_factory: pytest.TempPathFactory) -> tuple[Case, Path, Path]:
    """The case, its model and its package, verified."""
    folder, case = tmp_path_factory.mktemp("speaks"), vits()
    path = saved(case, folder / "m.onnx")
    bounds = {"longest": 40}
    result = modelc.compile(path, output=folder / "p", database=False, bounds=bounds, inputs=case.feeds[0])
    assert result.report is not None and result.report.passed
    return case, path, folder / "p"


def test_speech_of_any_length_up_to_a_bound(speaks: tuple[Case, Path, Path]) -> None:
    """Without noise the samples are ONNX Runtime's; `verify` hands it the same noise."""
    case, path, package = speaks
    model = onnx.load(path)
    next(t for t in model.graph.initializer if t.name == "noise").raw_data = np.float32(0).tobytes()
    silent = path.with_name("silent.onnx")
    onnx.save(model, silent)
    bounds = {"longest": 40}
    modelc.compile(silent, output=silent.with_suffix(""), database=False, bounds=bounds, verify=False)
    session, lengths = ort.InferenceSession(silent.read_bytes()), set()
    with load(silent.with_suffix(""), threads=2) as loaded:
        for feed in case.feeds:
            wanted = session.run(None, feed)
            agree(loaded.run(feed), wanted, case.outputs)
            lengths.add(wanted[0].shape[2])
    assert len(lengths) > 2 and min(lengths) >= STRIDE
    report = modelc.verify(package, path, inputs=case.feeds[2])
    assert report.passed and {one.name for one in report.outputs} == {*case.outputs}


def test_a_run_beyond_the_bound_ends_in_a_sentence(speaks: tuple[Case, Path, Path]) -> None:
    case, path, package = speaks
    with load(package) as loaded:
        for _ in range(2):
            with pytest.raises(LoadedError, match=r"'longest' is \d+; expected a number from 0 to 40"):
                loaded.run({**case.feeds[0], "scale": np.asarray(9, np.float32)})
            assert loaded.run(case.feeds[0])["wave"].shape[2] % STRIDE == 0
        feed = {**case.feeds[0], "scale": np.asarray(np.nan, np.float32)}
        with pytest.raises(LoadedError, match="expected a number from 0 to 40"):
            loaded.run(feed)
    with pytest.raises(ModelcError, match=r"modelc cannot run: .*'longest' is \d+; expected a number from 0 to 40"):
        modelc.verify(package, path, inputs={**case.feeds[0], "scale": np.asarray(9, np.float32)})


def test_the_flag_is_named_and_does_what_it_says(speaks: tuple[Case, Path, Path], capsys: Any) -> None:
    _, path, package = speaks
    with pytest.raises(ModelError, match=r"Range.*nothing bounds it.*--bound longest=N"):
        import_model(path)
    (size,) = modelc.inspect(path)["sizes"]
    assert (size["value"], size["op"]) == ("longest", "Range")
    for arguments, code in ((["inspect", str(path)], 0), (["compile", str(path), "--bound", "longest=0"], 2)):
        with pytest.raises(SystemExit) as end:
            main(arguments)
        assert end.value.code == code
    assert "add --bound longest=N" in capsys.readouterr().out
    assert modelc.inspect(path, bounds={"longest": 40})["sizes"] == []
    with pytest.raises(ModelError, match="--bound long=4 names no value of the model"):
        modelc.inspect(path, bounds={"long": 4})
    for wrong, sentence in (("nothing", "no value of"), ("wave", "not what a size is made of")):
        with pytest.raises(ModelError, match=rf"--bound names '{wrong}', which is .*{sentence}"):
            import_model(path, bounds={"longest": 40, wrong: 3})
    settings = replace(load_config(), check_addresses=False)
    with pytest.raises(ConfigError, match="check_addresses"):
        modelc.compile(path, config=settings, bounds={"longest": 9})
    manifest = json.loads((package / "manifest.json").read_text())
    assert manifest["bounds"] == {"longest": 40} == modelc.inspect(package)["bounds"]
    shape = next(t["shape"] for t in manifest["variants"][0]["outputs"] if t["name"] == "wave")
    assert shape == [1, 1, 40 * STRIDE]


# --- bounds that operators give -------------------------------------------------------------------------------------

RNG = np.random.default_rng(0)
MORE = {"zero": ints(0)[0], "one": ints(1)[0], "axis": ints(0), "four": ints(4), "seven": ints(7)[0]}


def sized(nodes: Sequence[onnx.NodeProto], outputs: str, **constants: Any) -> Case:
    """`n` is a number from 0 to 7 by a sigmoid."""
    number = [
        N("Sigmoid", ["s"], ["u"]),
        N("Mul", ["u", "most"], ["v"]),
        N("ReduceSum", ["v", "axis"], ["total"], keepdims=0),
        N("Floor", ["total"], ["whole"]),
        N("Cast", ["whole"], ["n"], to=I),
        N("Unsqueeze", ["n", "axis"], ["n1"]),
    ]
    rng = np.random.default_rng(1)
    feeds: list[Feeds] = [
        {"s": np.float32([a, b]), "x": rng.standard_normal((9, 4)).astype(np.float32)}
        for a, b in ((0, 1), (-1, -1), (9, 9), (-9, -9))
    ]
    return Case([*number, *nodes], outputs.split(), {**MORE, "most": np.float32(3.5), **constants}, feeds)


DERIVED = sized(
    [
        N("Range", ["zero", "n", "one"], ["range"]),
        N("Add", ["n", "one"], ["more"]),
        N("Unsqueeze", ["more", "axis"], ["more1"]),
        N("Slice", ["x", "axis", "more1"], ["part"]),
        N("Concat", ["n1", "four"], ["shape"], axis=0),
        N("Expand", ["row", "shape"], ["rows"]),
        N("ConstantOfShape", ["n1"], ["zeros"]),
        N("Concat", ["four", "n1"], ["times"], axis=0),
        N("Tile", ["column", "times"], ["tiles"]),
        N("Concat", ["n1", "ones"], ["times2"], axis=0),
        N("Tile", ["pair", "times2"], ["again"]),
        N("TopK", ["x", "n1"], ["best", "at"], axis=0),
        N("ReduceMax", ["x"], ["peak"], keepdims=0),
        N("Cast", ["peak"], ["peak_i"], to=I),
        N("Clip", ["peak_i", "one", "seven"], ["peaks"]),
        N("Range", ["zero", "peaks", "one"], ["upto"]),
        N("ArgMax", ["x"], ["where"], axis=0, keepdims=0),
        N("ReduceMax", ["where"], ["far"], keepdims=0),
        N("Unsqueeze", ["far", "axis"], ["far1"]),
        N("Slice", ["x", "axis", "far1"], ["first"]),
        # windows over what is there
        N("Transpose", ["part"], ["t"], perm=[1, 0]),
        N("Unsqueeze", ["t", "axis"], ["u3"]),
        N("Conv", ["u3", "w"], ["strided"], strides=[2], pads=[3, 2]),
        N("ConvTranspose", ["u3", "w_up"], ["upped"], strides=[3], pads=[1, 0], output_padding=[1]),
        N("MaxPool", ["u3"], ["pooled"], kernel_shape=[3], pads=[1, 1]),
        N("AveragePool", ["u3"], ["means"], kernel_shape=[2], pads=[1, 1], count_include_pad=1),
        N("Pad", ["u3", "around", "half"], ["wider"]),
        # recurrent nodes, of few steps and of many
        N("Unsqueeze", ["part", "ones"], ["few"]),
        N("Concat", ["few", "few"], ["many"], axis=0),
        N("LSTM", ["few", "lstm_w", "lstm_r"], ["y1", "h1"], hidden_size=3, direction="bidirectional"),
        N("GRU", ["many", "gru_w", "gru_r"], ["y2", "h2"], hidden_size=3, direction="reverse"),
    ],
    "y1 h1 y2 h2 range part rows zeros tiles again best at upto first strided upped pooled means wider",
    row=np.float32([[1, 2, 3, 4]]),
    column=np.float32([[1], [2]]),
    pair=np.float32([[1], [2]]),
    ones=ints(1),
    w=weights(RNG, 3, 4, 4),
    lstm_w=weights(RNG, 2, 12, 4),
    lstm_r=weights(RNG, 2, 12, 3),
    gru_w=weights(RNG, 1, 9, 4),
    gru_r=weights(RNG, 1, 9, 3),
    w_up=weights(RNG, 4, 2, 5),
    around=ints(0, 0, 1, 0, 0, 2),
    half=np.float32(0.5),
)


def test_bounds_that_operators_give(tmp_path: Path) -> None:
    """None is said: a sigmoid, a sum, Clip and ArgMax say how much there can be."""
    path = saved(DERIVED, tmp_path / "m.onnx")
    assert modelc.inspect(path)["sizes"] == []
    session, graph, shapes = ort.InferenceSession(path.read_bytes()), import_model(path), set()
    modelc.compile(path, output=tmp_path / "p", database=False, verify=False)
    with load(tmp_path / "p", threads=2) as model:
        for feed in DERIVED.feeds:
            wanted = session.run(None, feed)
            agree(actual(evaluate_graph(graph, feed)), wanted, DERIVED.outputs)
            agree(model.run(feed), wanted, DERIVED.outputs)
            shapes.add(tuple(x.shape for x in wanted))
        assert [info.shape for info in model.outputs][4:7] == [(7,), (8, 4), (7, 4)]
    assert len(shapes) == 4


def test_an_input_that_says_a_size_is_bounded_by_the_flag(tmp_path: Path) -> None:
    """It need not be a constant then; its data is drawn within the bound."""
    nodes = [N("Range", ["zero", "n", "one"], ["r"]), N("Mul", ["r", "r"], ["y"])]
    case = Case(nodes, ("y",), {k: MORE[k] for k in ("zero", "one")}, [{"n": np.asarray(k)} for k in (3, 0, 5)])
    path = saved(case, tmp_path / "m.onnx")
    result = modelc.compile(path, output=tmp_path / "p", database=False, bounds={"n": 5})
    assert result.report is not None and result.report.passed
    with load(tmp_path / "p") as model:
        for feed in case.feeds:
            assert np.array_equal(model.run(feed)["y"], np.arange(int(feed["n"])) ** 2)
        for wrong in (6, -1):
            with pytest.raises(LoadedError, match=rf"'n' is {wrong}; expected a number from 0 to 5"):
                model.run({"n": np.asarray(wrong)})


def test_windows_that_need_a_size_are_refused(tmp_path: Path) -> None:
    before = [N("Expand", ["row", "shape"], ["rows"]), N("Transpose", ["rows"], ["t"], perm=[1, 0])]
    before = [N("Concat", ["n1", "four"], ["shape"], axis=0), *before, N("Unsqueeze", ["t", "axis"], ["u3"])]
    refused = 0
    for node in (
        N("AveragePool", ["u3"], ["y"], "no", kernel_shape=[3], pads=[1, 1]),
        N("MaxPool", ["u3"], ["y"], "no", kernel_shape=[3], strides=[2], ceil_mode=1),
        N("MaxPool", ["u3"], ["y"], "no", kernel_shape=[3], strides=[2], auto_pad="SAME_UPPER"),
        N("Pad", ["u3", "around"], ["y"], "no", mode="reflect"),
    ):
        case = sized([*before, node], "y", row=np.float32([[1, 2, 3, 4]]), around=ints(0, 0, 1, 0, 0, 2))
        with pytest.raises(ModelError, match=rf"'no' \({node.op_type}\): dimension 2 of 'u3' has a size"):
            import_model(saved(case, tmp_path / "m.onnx"))
        refused += 1
    assert refused == 4


# --- ranges of what is computed of a bounded size -------------------------------------------------------------------

REAL = {"z": np.float32(0), "o": np.float32(1), "h": np.float32(0.5), "three": np.float32(3)}
WHOLE = {"zero": ints(0)[0], "one": ints(1)[0], "two": ints(2)[0], "five": ints(5)[0], "down": ints(-1)[0]}
RANGES = Case(
    [
        N("ReduceMax", ["lengths"], ["m"], keepdims=0),
        N("Range", ["zero", "m", "one"], ["frames"]),
        N("Cast", ["m"], ["real"], to=F),
        N("Range", ["z", "real", "o"], ["floats"]),  # as long as `frames`
        N("Cast", ["frames"], ["frames_f"], to=F),
        N("Add", ["frames_f", "floats"], ["both"]),
        N("Mul", ["real", "h"], ["half"]),
        N("Range", ["z", "half", "o"], ["halves"]),
        N("Sum", ["real", "half", "o"], ["added"]),
        N("Range", ["o", "added", "h"], ["fine"]),
        N("Range", ["zero", "m", "two"], ["steps"]),
        N("Neg", ["m"], ["minus"]),
        N("Range", ["minus", "m", "five"], ["across"]),
        N("Range", ["m", "down", "down"], ["falling"]),
        N("Add", ["m", "two"], ["more"]),
        N("Range", ["m", "more", "one"], ["behind"]),
        N("Sub", ["m", "five"], ["less"]),
        N("Range", ["less", "m", "one"], ["last"]),
    ],
    ("both", "halves", "fine", "steps", "across", "falling", "behind", "last"),
    {**REAL, **WHOLE},
    [{"lengths": ints(*lengths)} for lengths in ((3, 7, 5), (12, 0, 1), (0, 0, 0), (1, 1, 1))],
)


def test_ranges_that_follow_from_a_bounded_size(tmp_path: Path) -> None:
    """One flag bounds all of them: floats, steps, and where they begin."""
    path, bounds = saved(RANGES, tmp_path / "m.onnx"), {"m": 12}
    graph, session = import_model(path, bounds=bounds), ort.InferenceSession(path.read_bytes())
    result = modelc.compile(path, output=tmp_path / "p", database=False, bounds=bounds)
    assert result.report is not None and result.report.passed
    with load(tmp_path / "p") as model:
        for feed in RANGES.feeds:
            wanted = session.run(None, feed)
            agree(actual(evaluate_graph(graph, feed)), wanted, RANGES.outputs)
            agree(model.run(feed), wanted, RANGES.outputs)
        with pytest.raises(LoadedError, match=r"is (13|14|7); expected a number from 0 to (12|13|6)"):
            model.run({"lengths": ints(13, 2, 3)})


@pytest.mark.parametrize(
    ("nodes", "flags"),
    [
        ([N("ReduceMax", ["lengths"], ["m"], keepdims=0), N("Cast", ["m"], ["limit"], to=F)], ["m"]),
        ([N("Exp", ["x"], ["e"]), N("ReduceSum", ["e"], ["limit"], keepdims=0)], ["limit"]),
        ([N("ReduceSum", ["x"], ["s"], keepdims=0), N("Mul", ["s", "three"], ["limit"])], ["s"]),
        ([N("Identity", ["n"], ["limit"])], ["n"]),
    ],
    ids=["whole numbers as floats", "floats", "what floats are computed of", "an input"],
)
def test_a_range_of_floats_names_the_flag_that_bounds_it(
    tmp_path: Path, nodes: list[onnx.NodeProto], flags: list[str]
) -> None:
    feeds = {"lengths": ints(1, 2), "x": np.ones(3, np.float32), "n": np.asarray(3, np.float32)}
    read = {x for node in nodes for x in node.input}
    case = Case(
        [*nodes, N("Range", ["z", "limit", "o"], ["y"])], ("y",), REAL, [{k: v for k, v in feeds.items() if k in read}]
    )
    path = saved(case, tmp_path / "m.onnx")
    named = " ".join(f"--bound {x}=N" for x in flags)
    with pytest.raises(ModelError, match=f"say the most that it can be with {named}"):
        import_model(path)
    graph = import_model(path, bounds=dict.fromkeys(flags, 9))
    (wanted,) = ort.InferenceSession(path.read_bytes()).run(None, case.feeds[0])
    agree(actual(evaluate_graph(graph, case.feeds[0])), [wanted], case.outputs)


def test_a_float_that_is_no_size_is_not_bounded(tmp_path: Path) -> None:
    nodes = [N("Range", ["zero", "n", "one"], ["y"]), N("Neg", ["x"], ["w"])]
    feeds: Feeds = {"n": np.asarray(3), "x": np.asarray(1, np.float32)}
    path = saved(Case(nodes, ("y", "w"), WHOLE, [feeds]), tmp_path / "m.onnx")
    with pytest.raises(ModelError, match=r"--bound names 'w', which is .*not what a size is made of"):
        import_model(path, bounds={"n": 5, "w": 5})
