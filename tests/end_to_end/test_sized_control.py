"""Branches and loops that take or give values whose size depends on data: the interpreter and compiled packages beside
ONNX Runtime."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper
from sized_models import ROWS, SELECT, SOME, Case, Feeds, N, agree, ints, saved, scene

import modelc
from modelc.errors import ModelError
from modelc.frontend.onnx import import_model
from modelc.ir.graph import actual
from modelc.ops import evaluate_graph
from modelc.runtime import ModelError as LoadedError
from modelc.runtime import load

F, I, B = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
ALWAYS = {"half": np.float32(0.5), "i0": ints(0)[0], "z": ints(0), "one": ints(1)}


def body(nodes: Sequence[onnx.NodeProto], outputs: str, states: str = "") -> onnx.GraphProto:
    """A branch, or with `on` among its outputs a loop's body that carries `states`."""
    inputs = []
    if "on" in (names := outputs.split()):
        inputs = [helper.make_tensor_value_info("i", I, []), helper.make_tensor_value_info("go", B, [])]
        inputs += [helper.make_tensor_value_info(name, F, None) for name in states.split()]
        nodes = [*nodes, N("Identity", ["go"], ["on"])]
    return helper.make_graph(list(nodes), "body", inputs, [onnx.ValueInfoProto(name=name) for name in names])


def rows(nodes: Sequence[onnx.NodeProto], outputs: str, feeds: Sequence[Feeds], **constants: Any) -> Case:
    return Case([*SELECT, *nodes], outputs.split(), {**ALWAYS, **constants}, feeds)


def if_(condition: str, outputs: str, then: onnx.GraphProto, other: onnx.GraphProto) -> onnx.NodeProto:
    return N("If", [condition], outputs.split(), f"If_{outputs.split()[0]}", then_branch=then, else_branch=other)


BRANCHES = rows(
    [
        N("Size", ["r"], ["size"]),
        N("Equal", ["size", "i0"], ["none"]),
        N("ReduceMax", ["s"], ["top"], keepdims=0),
        N("Greater", ["top", "big"], ["go"]),
        N("Shape", ["r"], ["there"]),
        # nothing, or the best three rows of what was found
        if_(
            "none",
            "y yi",
            body([N("Identity", ["empty"], ["ya"]), N("Identity", ["nowhere"], ["yia"])], "ya yia"),
            body(
                [
                    N("ReduceSum", ["r", "one"], ["rs"], keepdims=0),
                    N("Gather", ["there", "z"], ["many"]),
                    N("Min", ["many", "three"], ["k"]),
                    N("TopK", ["rs", "k"], ["best", "yib"]),
                    N("Gather", ["r", "yib"], ["yb"], axis=0),
                ],
                "yb yib",
            ),
        ),
        N("Mul", ["y", "y"], ["squares"]),
        N("Add", ["y", "squares"], ["sum"]),
        N("Shape", ["y"], ["shape"]),
        N("ReduceSum", ["y", "z"], ["total"], keepdims=0),
        # as much in both branches, so that it meets what it came from
        if_("go", "v", body([N("Mul", ["r", "r"], ["va"])], "va"), body([N("Neg", ["r"], ["vb"])], "vb")),
        N("Add", ["v", "r"], ["w"]),
        # two fixed sizes
        if_("go", "u", body([N("Identity", ["x"], ["ua"])], "ua"), body([N("Slice", ["x", "z", "two"], ["ub"])], "ub")),
        N("ReduceMean", ["u"], ["mean"], axes=[0]),
        # a number that is a size
        if_(
            "go",
            "n",
            body([N("Gather", ["there", "z"], ["na"])], "na"),
            body([N("Identity", ["one"], ["nb"])], "nb"),
        ),
        N("Slice", ["x", "z", "n"], ["first"]),
    ],
    "y yi sum shape total v w u mean first",
    ROWS,
    empty=np.zeros((0, 4), np.float32),
    nowhere=np.zeros(0, np.int64),
    big=np.float32(1.2),
    two=ints(2),
    three=ints(3),
)


def loop(inputs: str, outputs: str, inner: onnx.GraphProto) -> onnx.NodeProto:
    name = f"Loop_{outputs.split()[0]}"
    return N("Loop", ["n", "", *inputs.split()], outputs.split(), name, body=inner)


LOOPS = rows(
    [
        # as much in every iteration
        loop("r", "a", body([N("Mul", ["a1", "half"], ["a2"]), N("Add", ["a2", "r"], ["a3"])], "on a3", "a1")),
        N("Add", ["a", "r"], ["ar"]),
        # less in every iteration, of two values alike
        N("ReduceMax", ["r"], ["most"], axes=[1], keepdims=0),
        loop(
            "r most low",
            "b bm limit",
            body(
                [
                    N("ReduceSum", ["b1", "one"], ["sums"], keepdims=0),
                    N("Greater", ["sums", "l1"], ["kept"]),
                    N("Compress", ["b1", "kept"], ["b2"], axis=0),
                    N("Compress", ["m1", "kept"], ["m2"], axis=0),
                    N("Add", ["l1", "half"], ["l2"]),
                ],
                "on b2 m2 l2",
                "b1 m1 l1",
            ),
        ),
        N("Unsqueeze", ["bm", "one"], ["column"]),
        N("Mul", ["b", "column"], ["c"]),
        # nothing, then what each iteration finds
        loop(
            "empty",
            "d",
            body(
                [
                    N("Cast", ["i"], ["fi"], to=F),
                    N("Mul", ["fi", "half"], ["least"]),
                    N("ReduceMax", ["x"], ["highest"], axes=[1], keepdims=0),
                    N("Greater", ["highest", "least"], ["found"]),
                    N("Compress", ["x", "found"], ["d2"], axis=0),
                ],
                "on d2",
                "d1",
            ),
        ),
        # a branch within, which gives another size than it takes
        loop(
            "r",
            "e",
            body(
                [
                    N("Shape", ["e1"], ["shape"]),
                    N("Gather", ["shape", "i0"], ["many"]),
                    N("Greater", ["many", "two"], ["some"]),
                    if_(
                        "some",
                        "e2",
                        body([N("Slice", ["e1", "one", "far"], ["ea"])], "ea"),
                        body([N("Identity", ["e1"], ["eb"])], "eb"),
                    ),
                ],
                "on e2",
                "e1",
            ),
        ),
        N("ReduceSum", ["e", "z"], ["total"]),
    ],
    "a ar b bm c d e total",
    [{**feed, "n": np.asarray(n)} for feed in SOME for n in (0, 1, 3)],
    low=np.float32(-3),
    empty=np.zeros((0, 4), np.float32),
    two=ints(2)[0],
    far=ints(2**60),
)

# As torchvision's detectors: boxes with a score, suppressed class by class, and the best of them.
DETECTOR = Case(
    [
        N("Greater", ["score", "least"], ["m"]),
        N("NonZero", ["m"], ["nz"]),
        N("Squeeze", ["nz", "z"], ["kept"]),
        N("Gather", ["box", "kept"], ["b"], axis=0),
        N("Gather", ["score", "kept"], ["s"], axis=0),
        N("Gather", ["label", "kept"], ["l"], axis=0),
        N("Size", ["b"], ["size"]),
        N("Equal", ["size", "i0"], ["none"]),
        if_(
            "none",
            "keep",
            body([N("Identity", ["nowhere"], ["ka"])], "ka"),
            body(
                [
                    N("ReduceMax", ["b"], ["far"], keepdims=0),
                    N("Add", ["far", "unit"], ["step"]),
                    N("Cast", ["l"], ["lf"], to=F),
                    N("Mul", ["lf", "step"], ["moved"]),
                    N("Unsqueeze", ["moved", "one"], ["column"]),
                    N("Add", ["b", "column"], ["apart"]),
                    N("Unsqueeze", ["apart", "z"], ["b1"]),
                    N("Unsqueeze", ["s", "both"], ["s1"]),
                    N("NonMaxSuppression", ["b1", "s1", "every", "iou"], ["chosen"]),
                    N("Gather", ["chosen", "two"], ["which"], axis=1),
                    N("Squeeze", ["which", "one"], ["kb"]),
                ],
                "kb",
            ),
        ),
        N("Gather", ["s", "keep"], ["ks"], axis=0),
        N("Shape", ["ks"], ["there"]),
        N("Min", ["there", "five"], ["k"]),
        N("TopK", ["ks", "k"], ["scores", "at"]),
        N("Gather", ["keep", "at"], ["best"], axis=0),
        N("Gather", ["b", "best"], ["boxes"], axis=0),
        N("Gather", ["l", "best"], ["labels"], axis=0),
    ],
    ("boxes", "scores", "labels", "keep"),
    {
        **{k: ALWAYS[k] for k in ("z", "one", "i0")},
        "least": np.float32(0.6),
        "unit": np.float32(1),
        "iou": np.float32([0.4]),
        "two": ints(2),
        "five": ints(5),
        "both": ints(0, 1),
        "every": ints(2**62),
        "nowhere": np.zeros(0, np.int64),
    },
    [
        {"box": found["boxes"][0], "score": found["scores"][0, 0], "label": np.arange(30) % 3}
        for found in (scene(1, share) for share in (1, 0.7, 0, 0.62))
    ],
)
WORDS = np.random.default_rng(3).standard_normal((6, 4)).astype(np.float32)


def decoder() -> Case:
    """Words that follow each other until one says the end: every iteration makes what is carried larger by one."""
    nodes = [
        N("Gather", ["table", "w1"], ["e"], axis=0),
        N("ReduceMean", ["e"], ["mean"], axes=[1], keepdims=0),
        N("Gather", ["x", "i"], ["xi"], axis=0),
        N("Add", ["mean", "xi"], ["now"]),
        N("Concat", ["h1", "now"], ["h2"], axis=0),
        N("ReduceMax", ["h2"], ["top"], axes=[0], keepdims=1),
        N("Transpose", ["table"], ["turned"], perm=[1, 0]),
        N("MatMul", ["top", "turned"], ["each"]),
        N("ArgMax", ["each"], ["next"], axis=1, keepdims=1),
        N("Concat", ["w1", "next"], ["w2"], axis=1),
        N("Squeeze", ["next"], ["word"]),
        N("Equal", ["word", "i0"], ["ends"]),
        N("Not", ["ends"], ["on"]),
    ]
    info = helper.make_tensor_value_info
    given = [info("i", I, []), info("go", B, []), info("w1", I, None), info("h1", F, None)]
    given_back = [onnx.ValueInfoProto(name=name) for name in ("on", "w2", "h2", "each")]
    inner = helper.make_graph(nodes, "body", given, given_back)
    outer = [
        N("Loop", ["most", "", "begin", "none"], ["said", "heard", "scores"], "talk", body=inner),
        N("ReduceSum", ["heard", "z"], ["sum"], keepdims=0),
    ]
    held = {"table": WORDS, "most": ints(7)[0], "i0": ints(0)[0], "z": ints(0), "none": np.zeros((0, 4), np.float32)}
    feeds = [
        {"x": np.random.default_rng(seed).standard_normal((7, 1, 4)).astype(np.float32), "begin": ints(1)[None]}
        for seed in (0, 3, 24, 22)  # 7, 1, 4 and 2 words
    ]
    return Case(outer, ("said", "heard", "scores", "sum"), held, feeds)


CASES = {"branches": BRANCHES, "loops": LOOPS, "detector": DETECTOR, "decoder": decoder()}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.sweep(2)
def test_beside_onnx_runtime(name: str, tmp_path: Path) -> None:
    """What is interpreted, and what is compiled, on data of which nothing, some and all is found."""
    case = CASES[name]
    path = saved(case, tmp_path / "m.onnx")
    session, graph, shapes = ort.InferenceSession(path.read_bytes()), import_model(path), set()
    result = modelc.compile(path, output=tmp_path / "p", database=False, inputs=case.feeds[1])
    assert result.report is not None and result.report.passed
    with load(tmp_path / "p", threads=2) as model:
        for feed in case.feeds:
            wanted = session.run(None, feed)
            agree(actual(evaluate_graph(graph, feed)), wanted, case.outputs)
            agree(model.run(feed), wanted, case.outputs)
            shapes.add(tuple(x.shape for x in wanted))
    assert len(shapes) > 2  # the sizes did depend on data


def handing(scan: bool) -> Case:
    """What each iteration makes of a selection is as large in all of them, stacked along another axis than the one that
    depends on data; and a Scan that goes along rows of which each has that size."""
    nodes = list(ASKED)
    if scan:
        states, part = helper.make_tensor_value_info("c1", F, None), helper.make_tensor_value_info("part", F, None)
        made = [N("Add", ["c1", "part"], ["c2"]), N("Mul", ["c2", "half"], ["each"])]
        results = [onnx.ValueInfoProto(name=name) for name in ("c2", "each")]
        inner = helper.make_graph(made, "body", [states, part], results)
        nodes += [
            N("Transpose", ["r"], ["t"], perm=[1, 0]),
            N("Concat", ["t"] * 10, ["long"], axis=0),
            N("ReduceSum", ["r", "one"], ["begin"], keepdims=0),
            N("Scan", ["begin", "long"], ["y", "last"], body=inner, num_scan_inputs=1),
        ]
        return rows(nodes, "y last", SOME[:2])
    inner = body([N("Cast", ["i"], ["fi"], to=F), N("Mul", ["r", "fi"], ["each"])], "on each")
    nodes += [N("Loop", ["three", "go"], ["y"], body=inner), N("Shape", ["y"], ["last"])]
    return rows(nodes, "y last", ROWS, three=ints(3)[0])


@pytest.mark.parametrize("scan", [False, True])
def test_what_iterations_hand_out(scan: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("modelc.frontend.control.unroll.MOST_UNROLLED", 8)
    case = handing(scan)
    path = saved(case, tmp_path / "m.onnx")
    session, graph, compared = ort.InferenceSession(path.read_bytes()), import_model(path), 0
    for feed in case.feeds:
        agree(actual(evaluate_graph(graph, feed)), session.run(None, feed), case.outputs)
        compared += 1
    assert compared > 1 and any(node.op == "Loop" for node in graph.nodes)


GROWING = body([N("Concat", ["v1", "r"], ["v2"], axis=0)], "on v2", "v1")
COLLECTING = body([*GROWING.node[:-1], N("Cast", ["i"], ["each"], to=F)], "on v2 each", "v1")
TWICE = body([N("Concat", ["v1", "v1"], ["v2"], axis=0)], "on v2", "v1")
EACH = body(
    [N("Cast", ["i"], ["f"], to=F), N("Greater", ["s", "f"], ["g"]), N("Compress", ["x", "g"], ["y1"], axis=0)], "on y1"
)
ASKED = [N("ReduceMax", ["s"], ["top"], keepdims=0), N("Greater", ["top", "half"], ["go"])]
REFUSED = {
    "grows": (
        [loop("r", "y", GROWING)],
        r"'Loop_y' \(Loop\): .* gives float32\[24, 4\]: .* may not be larger.* --bound n=N",
    ),
    "doubles": (
        [*ASKED, N("Loop", ["two", "go", "r"], ["y"], "Loop_y", body=TWICE)],
        r"'Loop_y' \(Loop\): .*: .* may not be larger",
    ),
    "other rows": (
        [*ASKED, N("Loop", ["two", "go"], ["y"], "l", body=EACH)],
        r"'l' \(Loop\): dimension 0 of .* hands out another",
    ),
    "ranks": (
        [
            *ASKED,
            if_("go", "y", body([N("Neg", ["r"], ["ya"])], "ya"), body([N("Identity", ["s"], ["yb"])], "yb")),
        ],
        r"'If_y' \(If\): expected branches that give 'y' the same dtype and as many dimensions",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_in_a_sentence(name: str, tmp_path: Path) -> None:
    nodes, sentence = REFUSED[name]
    case = rows(nodes, "y", [{**ROWS[0], "n": np.asarray(2)}], two=ints(2)[0])
    with pytest.raises(ModelError, match=sentence):
        import_model(saved(case, tmp_path / "m.onnx"))


def test_what_grows_is_bounded_by_the_flag(tmp_path: Path) -> None:
    """The trip count is an input, and each iteration hands out something, too; more iterations than were said end a run
    with a sentence."""
    case = rows([loop("r", "y steps", COLLECTING)], "y steps", [{**ROWS[0], "n": np.asarray(k)} for k in (2, 0, 3)])
    path = saved(case, tmp_path / "m.onnx")
    with pytest.raises(ModelError, match=r"what it hands out is not known when compiling; say .* with --bound n=N"):
        import_model(path)
    assert modelc.inspect(path, bounds={"n": 3})["supported"] and not modelc.inspect(path)["supported"]
    session = ort.InferenceSession(path.read_bytes())
    modelc.compile(path, output=tmp_path / "p", database=False, bounds={"n": 3}, verify=False)
    with load(tmp_path / "p") as model:
        for feed in case.feeds:
            agree(model.run(feed), session.run(None, feed), case.outputs)
        with pytest.raises(LoadedError, match="'n' is 4; expected a number from 0 to 3"):
            model.run({**case.feeds[0], "n": np.asarray(4)})
