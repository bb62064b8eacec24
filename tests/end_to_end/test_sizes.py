"""Outputs whose size depends on data: the interpreter and compiled packages beside ONNX Runtime, on data of which
nothing, some and all is found."""

from __future__ import annotations

import ctypes
import json
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from emulated_kernels import emulator_of
from library_of import library_of
from onnx import TensorProto, helper
from sized_models import RNG, ROWS, SELECT, SOME, Case, Feeds, N, agree, ints, saved, scene

import modelc
from modelc.errors import ModelError, PackageError
from modelc.frontend.onnx import import_model, unsupported
from modelc.ir.graph import actual
from modelc.ops import evaluate_graph
from modelc.package import read_package, run_emulated
from modelc.runtime import ModelError as LoadedError
from modelc.runtime import load
from modelc.target import load_target
from modelc.verify.compare import distance

F, I = TensorProto.FLOAT, TensorProto.INT64


# --- models -------------------------------------------------------------------------------------------------------

COUNT = [N("Shape", ["r"], ["sh"]), N("Gather", ["sh", "i0"], ["n"], axis=0)]


def rows(nodes: Sequence[onnx.NodeProto], outputs: str, feeds: Sequence[Feeds] = ROWS, **constants: Any) -> Case:
    known = {"half": np.float32(0.5), "i0": ints(0)[0], "z": ints(0), "one": ints(1), **constants}
    used = {name for node in (*SELECT, *nodes) for name in node.input}
    return Case([*SELECT, *nodes], outputs.split(), {k: v for k, v in known.items() if k in used}, feeds)


DETECT = [
    N("NonMaxSuppression", ["boxes", "scores", "most", "iou", "least"], ["chosen"]),
    N("Slice", ["chosen", "two", "three", "one"], ["column"]),
    N("Squeeze", ["column", "one"], ["which"]),
    N("Gather", ["boxes", "which"], ["picked"], axis=1),
    N("Squeeze", ["picked", "z"], ["corners"]),
    N("GatherND", ["scores", "chosen"], ["score"]),
    N("Unsqueeze", ["score", "one"], ["score1"]),
    N("Gather", ["chosen", "one"], ["class"], axis=1),
    N("Cast", ["class"], ["class1"], to=F),
    N("Concat", ["corners", "score1", "class1"], ["found"], axis=1),
    N("Shape", ["which"], ["there"]),
    N("Min", ["there", "five"], ["k"]),
    N("TopK", ["score", "k"], ["best", "place"]),
    N("Gather", ["found", "place"], ["top"], axis=0),
]
LIMITS = {"z": ints(0), "one": ints(1), "two": ints(2), "three": ints(3), "five": ints(5)}
LIMITS |= {"most": ints(5), "iou": np.float32([0.4]), "least": np.float32([0.6])}


FILTERED = [  # scores are compared first, as torchvision does
    N("Greater", ["score", "least"], ["m"]),
    N("NonZero", ["m"], ["nz"]),
    N("Squeeze", ["nz", "z"], ["kept"]),
    N("Gather", ["box", "kept"], ["b"], axis=0),
    N("Gather", ["score", "kept"], ["s"], axis=0),
    N("Unsqueeze", ["b", "z"], ["b1"]),
    N("Unsqueeze", ["s", "both"], ["s1"]),
    N("NonMaxSuppression", ["b1", "s1", "every", "iou"], ["chosen"]),
    N("Gather", ["chosen", "two"], ["which"], axis=1),
    N("Squeeze", ["which", "one"], ["which1"]),
    N("Slice", ["which1", "z", "five"], ["first"]),
    N("Gather", ["b", "first"], ["ob"], axis=0),
    N("Gather", ["s", "first"], ["os"], axis=0),
]


def filtered_scene(share: float) -> Feeds:
    found = scene(1, share)
    return {"box": found["boxes"][0], "score": found["scores"][0, 0]}


def finds(values: int) -> Feeds:
    return {"x": RNG.integers(0, values, (6, 4)).astype(np.float32), "c": RNG.integers(0, values, 4) > 0}


UNIQUE = [
    N("Unique", ["x"], ["u", "ui", "uv", "uc"]),
    N("Unique", ["x"], ["f", "", "fv"], sorted=0),
    N("Unique", ["x"], ["ua", "uai", "uav", "uac"], axis=1),
    N("Unique", ["x"], ["r", "ri"], axis=-2, sorted=0),
    N("Compress", ["x", "c"], ["c1"], axis=1),
    N("Compress", ["x", "c"], ["c2"]),
    N("NonZero", ["x"], ["n"]),
]
CASES = {
    "found": Case(
        UNIQUE,
        ["u", "ui", "uv", "uc", "f", "fv", "ua", "uai", "uav", "uac", "r", "ri", "c1", "c2", "n"],
        {},
        [*map(finds, (2, 1, 3, 900))],
    ),
    "elementwise": rows(
        [
            N("Mul", ["r", "r"], ["a"]),
            N("Transpose", ["a"], ["b"]),
            N("Cast", ["b"], ["c"], to=I),
            N("MatMul", ["r", "w"], ["d"]),
            N("Softmax", ["d"], ["e"], axis=-1),
            N("ReduceMean", ["d"], ["f"], axes=[1]),
            N("Compress", ["r", "m4"], ["h"], axis=1),
            N("Mul", ["r", "r"], ["v"]),
            N("ScatterND", ["x", "nzt", "v"], ["scattered"]),
            N("Concat", ["r", "d"], ["wide"], axis=1),
        ],
        "r nz c e f h scattered wide",
        w=RNG.standard_normal((4, 5)).astype(np.float32),
        m4=np.array([True, False, True, True]),
    ),
    "sums": rows(
        [
            N("ReduceSum", ["r", "z"], ["a"]),
            N("ReduceMax", ["r"], ["b"], axes=[0], keepdims=0),
            N("ReduceMean", ["r"], ["c"], axes=[0, 1]),
            N("ReduceLogSumExp", ["r"], ["d"], axes=[0]),
            N("Softmax", ["r"], ["e"], axis=0),
            N("CumSum", ["r", "i0"], ["f"]),
            N("ArgMin", ["r"], ["g"], axis=0, keepdims=0),
            N("Transpose", ["r"], ["rt"], perm=[1, 0]),
            N("MatMul", ["rt", "r"], ["h"]),
            N("Gather", ["r", "ends"], ["k"], axis=0),
        ],
        "a b c d e f g h k",
        SOME,
        ends=ints(0, -1),
    ),
    "shapes": rows(
        [
            *COUNT,
            N("Size", ["r"], ["size"]),
            N("Unsqueeze", ["n", "z"], ["n1"]),
            N("Concat", ["n1", "two", "two"], ["t"], axis=0),
            N("Reshape", ["r", "t"], ["a"]),
            N("Reshape", ["r", "flat"], ["b"]),
            N("Reshape", ["b", "pairs"], ["c"]),
            N("Flatten", ["a"], ["d"]),
            N("Range", ["i0", "n", "step"], ["e"]),
            N("ConstantOfShape", ["n1"], ["f"]),
            N("Expand", ["one_row", "sh"], ["g"]),
            N("Add", ["g", "r"], ["gr"]),
        ],
        "sh size a b c d e f gr",
        two=ints(2),
        flat=ints(-1),
        pairs=ints(-1, 2),
        step=ints(1)[0],
        one_row=np.float32([[1, 2, 3, 4]]),
    ),
    "parts": rows(
        [
            N("Slice", ["r", "z", "three"], ["a"]),
            N("Slice", ["r", "two", "far"], ["b"]),
            N("Slice", ["r", "z", "last"], ["c"]),
            N("Slice", ["r", "z", "one"], ["d"]),
            N("Slice", ["r", "eleven", "far"], ["g"]),
            *COUNT,
            N("Unsqueeze", ["n", "z"], ["n1"]),
            N("Slice", ["x", "z", "n1"], ["e"]),
            N("Concat", ["r", "x", "b"], ["f"], axis=0),
            N("Unique", ["r"], ["u", "ui", "uv", "uc"]),
        ],
        "a b c d e f g u ui uv uc",
        eleven=ints(11),
        two=ints(2),
        three=ints(3),
        far=ints(2**62),
        last=ints(-1),
    ),
    "filled up": rows(  # as TensorFlow's detectors hand out as many boxes as there may be
        [
            *COUNT,
            N("Unsqueeze", ["n", "z"], ["n1"]),
            N("Min", ["n1", "twenty"], ["k"]),
            N("Sub", ["twenty", "k"], ["rest"]),
            N("Concat", ["z", "z", "rest", "z"], ["pads"], axis=0),
            N("Pad", ["r", "pads", "half"], ["a"]),
            N("ReduceSum", ["r", "one"], ["s1"], keepdims=0),
            N("TopK", ["s1", "k"], ["best", "place"]),
            N("Concat", ["z", "rest"], ["pads1"], axis=0),
            N("Pad", ["best", "pads1"], ["b"]),
            N("Pad", ["place", "pads1"], ["c"]),
        ],
        "a b c s1",
        twenty=ints(20),
    ),
    "index_put": rows(  # as PyTorch exports what is assigned by a mask, or by indices, to what a mask has selected
        [
            *COUNT,
            N("Equal", ["sh", "minus"], ["free"]),
            N("Where", ["free", "ones", "sh"], ["like"]),
            N("Expand", ["one_row", "like"], ["wide"]),
            N("Range", ["i0", "n", "step"], ["at"]),
            N("Unsqueeze", ["at", "one"], ["row"]),
            N("Shape", ["row"], ["like_row"]),
            N("Expand", ["three", "like_row"], ["column"]),
            N("Concat", ["row", "column"], ["cell"], axis=1),
            N("GatherND", ["r", "cell"], ["last"]),
            N("Add", ["last", "last"], ["twice"]),
            N("ScatterND", ["r", "cell", "twice"], ["a"]),
            N("ScatterND", ["x", "nzt", "r"], ["b"], reduction="add"),
            N("ScatterND", ["x", "nzt", "a"], ["bm"], reduction="mul"),
            N("ArgMax", ["r"], ["best"], axis=1),
            N("GatherElements", ["r", "best"], ["top"], axis=1),
            N("Neg", ["top"], ["less"]),
            N("ScatterElements", ["a", "best", "less"], ["c"], axis=1),
            N("Shape", ["s"], ["own"]),
            N("Expand", ["m", "own"], ["m2"]),
            N("NonZero", ["m2"], ["nz2"]),
            N("Transpose", ["nz2"], ["nz2t"], perm=[1, 0]),
            N("Shape", ["nz2t"], ["sh2"]),
            N("Gather", ["sh2", "z"], ["n2"]),
            N("Slice", ["c", "z", "n2"], ["c2"]),
            N("ScatterND", ["x", "nz2t", "c2"], ["d"]),
        ],
        "wide last a b bm top c d",
        minus=ints(-1, -1),
        ones=ints(1, 1),
        one_row=np.float32([[1, 2, 3, 4]]),
        step=ints(1)[0],
        three=ints(3)[0],
    ),
    "detector": Case(DETECT, ("top", "found", "chosen"), LIMITS, [scene(1, share) for share in (1, 0.7, 0, 0.62)]),
    "filtered": Case(
        FILTERED,
        ("ob", "os"),
        {
            **{k: LIMITS[k] for k in ("z", "one", "iou", "five")},
            "least": np.float32(0.6),
            "two": ints(2),
            "both": ints(0, 1),
            "every": ints(2**62),
        },
        [filtered_scene(share) for share in (1, 0.7, 0, 0.62)],
    ),
    "limits": Case(
        [
            N("NonMaxSuppression", ["boxes", "scores", "most", "iou", "least"], ["a"]),
            N("NonMaxSuppression", ["boxes", "scores", "most", "iou"], ["b"], center_point_box=1),
            N("NonMaxSuppression", ["boxes", "scores", "five"], ["c"]),
        ],
        ("a", "b", "c"),
        {"five": ints(5)},
        [
            {**scene(2, 1), "most": ints(most), "iou": np.float32([iou]), "least": np.float32([least])}
            for most in (3, 100, 0)
            for iou, least in ((0.5, 0.5), (0, 0.9), (1, 0), (0.2, 2))
        ],
    ),
}


# --- three ways ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CASES)
def test_what_is_interpreted(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    path = saved(case, tmp_path / "m.onnx")
    graph, session = import_model(path), ort.InferenceSession(path.read_bytes())
    shapes = set()
    for feed in case.feeds:
        wanted = session.run(None, feed)
        agree(actual(evaluate_graph(graph, feed)), wanted, case.outputs)
        shapes.add(tuple(x.shape for x in wanted))
    assert len(shapes) > 1  # the sizes did depend on data


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("sizes")


def compiled(name: str, folder: Path, **how: Any) -> Path:
    """The package of a case, made once."""
    package = folder / f"{name}.modelc"
    if not package.exists():
        how = {"verify": False, **how}
        modelc.compile(saved(CASES[name], folder / f"{name}.onnx"), output=package, database=False, **how)
    return package


@pytest.mark.parametrize(
    "name", ["elementwise", "sums", "parts", "index_put", "filled up", "detector", "filtered", "limits"]
)
@pytest.mark.sweep(2)
def test_what_is_compiled(name: str, packages: Path) -> None:
    case = CASES[name]
    session, compared = ort.InferenceSession(saved(case, packages / f"{name}.onnx").read_bytes()), 0
    with load(compiled(name, packages), threads=2) as model:
        for feed in case.feeds:
            agree(model.run(feed), session.run(None, feed), case.outputs)
            compared += 1
    assert compared >= 3


def test_a_package_is_verified_with_the_sizes_that_onnx_runtime_has(tmp_path: Path) -> None:
    case = CASES["found"]
    path = saved(case, tmp_path / "m.onnx")
    result = modelc.compile(path, output=tmp_path / "p", database=False)
    assert result.report is not None and result.report.passed and result.report.samples >= 2
    assert {one.name for one in result.report.outputs} == {*case.outputs}
    session = ort.InferenceSession(path.read_bytes())
    with load(tmp_path / "p") as model:
        for feed in case.feeds:
            agree(model.run(feed), session.run(None, feed), case.outputs)


def test_kernel_by_kernel(packages: Path) -> None:
    """What a kernel writes is compared as far as there is something of it."""
    package = read_package(compiled("detector", packages))
    report = modelc.verify(package.path, packages / "detector.onnx", CASES["detector"].feeds[3], per_layer=True)
    assert {"chosen", "top", "score"} <= {layer.value for layer in report.layers}
    assert all(layer.passed for layer in report.layers)
    assert all(kernel.passed for kernel in report.kernels) and sum(kernel.samples for kernel in report.kernels)
    said = modelc.inspect(package.path)["variants"][0]["outputs"]
    assert [(one["shape"], one["at_most"]) for one in said] == [((5, 6), [0]), ((15, 6), [0]), ((15, 3), [0])]


def test_a_wrong_size_is_a_failure(tmp_path: Path) -> None:
    path, feed = saved(rows([], "r nz"), tmp_path / "m.onnx"), ROWS[0]
    r, nz = ort.InferenceSession(path.read_bytes()).run(None, feed)
    for ours, passed in (({"r": r, "nz": nz}, True), ({"r": r[:-1], "nz": nz[:, :-1]}, False)):
        assert [distance(ours[name], array, 1e-3, 1e-4).passed for name, array in (("r", r), ("nz", nz))] == [
            passed
        ] * 2


def test_on_another_machine(tmp_path: Path) -> None:
    target = load_target("cortex-a76")
    emulator_of(target)
    case = CASES["detector"]
    path = saved(case, tmp_path / "m.onnx")
    modelc.compile(path, target, tmp_path / "p", database=False, verify=False)
    session = ort.InferenceSession(path.read_bytes())
    for feed in case.feeds[:3]:
        agree(run_emulated(tmp_path / "p", feed).outputs, session.run(None, feed), case.outputs)


# --- through C, and buffers of one's own --------------------------------------------------------------------------


def test_shapes_in_c(packages: Path) -> None:
    package = compiled("detector", packages)
    feed = CASES["detector"].feeds[0]
    with load(package) as model:
        ask, handle = model._library.output_shape, model._handle
        shape = (ctypes.c_int64 * 2)()
        assert ask(handle, 0, 0, ctypes.addressof(shape)) == 1
        assert b"'top' depends on what is run" in model._library.last_error()
        found = model.run(feed)
        for k, name in enumerate(CASES["detector"].outputs):
            assert ask(handle, 0, k, ctypes.addressof(shape)) == 0 and tuple(shape) == found[name].shape
        assert ask(handle, 0, 3, ctypes.addressof(shape)) == ask(handle, 0, 0, None) == ask(handle, 1, 0, None) == 1
        with pytest.raises(LoadedError):
            model.run({**feed, "boxes": feed["boxes"][:, :3]})
        assert ask(handle, 0, 0, ctypes.addressof(shape)) == 0  # that run did not begin


def test_arrays_of_the_most_that_there_can_be(packages: Path) -> None:
    feed = CASES["detector"].feeds[1]
    with load(compiled("detector", packages)) as model:
        shape = {info.name: info.shape for info in model.outputs}["found"]
        given = np.full(shape, 7, np.float32)
        found, alone = model.run(feed, out={"found": given}), model.run(feed)
        assert np.shares_memory(found["found"], given) and 0 < len(found["found"]) < len(given)
        for name, array in alone.items():
            assert np.array_equal(found[name], array)


def test_the_example_prints_the_shape(packages: Path, tmp_path: Path) -> None:
    package = Path(shutil.copytree(compiled("detector", packages), tmp_path / "p"))
    subprocess.run(
        [
            "cc",
            "-O1",
            "-Werror",
            "-Wall",
            "example.c",
            f"./{library_of(package).name}",
            "-Wl,-rpath,$ORIGIN",
            "-o",
            "example",
        ],
        cwd=package,
        check=True,
    )
    for name, array in CASES["detector"].feeds[3].items():
        array.tofile(package / name)
    said = subprocess.run(
        ["./example", ".", "boxes", "scores"], cwd=package, check=True, capture_output=True, text=True
    )
    with load(package) as model:
        wanted = model.run(CASES["detector"].feeds[3])["chosen"].shape
    assert f"chosen has the shape [{', '.join(map(str, wanted))}]" in said.stdout


def test_damaged_sizes(packages: Path, tmp_path: Path) -> None:
    package = Path(shutil.copytree(compiled("detector", packages), tmp_path / "p"))
    manifest = json.loads((package / "manifest.json").read_text())
    assert manifest["variants"][0]["sizes"]
    for wrong in ({"output": 9, "axis": 0}, {"output": 0, "axis": 2}, {"output": -1, "axis": 0}, {"axis": 0}, 3):
        manifest["variants"][0]["sizes"] = [wrong]
        (package / "manifest.json").write_text(json.dumps(manifest))
        with pytest.raises(PackageError, match=r"damaged|sizes"):
            read_package(package)
        if wrong != {"output": 0, "axis": 2}:  # an axis is the library's business
            with pytest.raises(LoadedError, match="damaged"):
                load(package)


# --- what a loop collects -----------------------------------------------------------------------------------------


def collecting() -> Case:
    """v = 2 v, and a selection of v's elements is counted, until a sum reaches a limit, but ten times at most."""
    info = helper.make_tensor_value_info
    body = helper.make_graph(
        [
            N("Add", ["v", "v"], ["twice"]),
            N("ReduceSum", ["twice"], ["s"], keepdims=0),
            N("Less", ["s", "limit"], ["again"]),
            N("Greater", ["twice", "limit"], ["big"]),
            N("NonZero", ["big"], ["where"]),
            N("Size", ["where"], ["many"]),
        ],
        "body",
        [info("i", I, []), info("go", TensorProto.BOOL, []), info("v", F, [2, 4])],
        [onnx.ValueInfoProto(name=name) for name in ("again", "twice", "twice_out", "many")],
    )
    body.node.append(N("Neg", ["twice"], ["twice_out"]))
    nodes = [
        N("Less", ["start", "limit"], ["begin"]),
        N("Loop", ["ten", "begin", "x"], ["last", "every", "number"], body=body),
        N("Shape", ["every"], ["shape"]),
        N("ReduceSum", ["every", "z"], ["total"], keepdims=0),
        N("Where", ["mask", "every", "every"], ["same"]),
    ]
    x = RNG.uniform(0.1, 1, (2, 4)).astype(np.float32)
    start = np.zeros((), np.float32)
    feeds = [{"x": x, "start": start, "limit": np.asarray(n, np.float32)} for n in (0.1, 60, 7, 1e9)]
    feeds += [{**feeds[0], "start": np.asarray(2, np.float32)}]
    constants = {"ten": ints(10)[0], "z": ints(0), "mask": np.array([[True, False, True, True]])}
    return Case(nodes, ("last", "every", "number", "shape", "total", "same"), constants, feeds)


def test_what_a_loop_collects_is_as_long_as_it_ran(tmp_path: Path) -> None:
    case = collecting()
    path = saved(case, tmp_path / "m.onnx")
    assert not unsupported(path)
    session, graph, lengths = ort.InferenceSession(path.read_bytes()), import_model(path), set()
    modelc.compile(path, output=tmp_path / "p", database=False, verify=False)
    with load(tmp_path / "p") as model:
        for feed in case.feeds:
            wanted = session.run(None, feed)
            agree(actual(evaluate_graph(graph, feed)), wanted, case.outputs)
            agree(model.run(feed), wanted, case.outputs)
            lengths.add(len(wanted[1]))
    assert {0, 1, 10} < lengths


# --- what is refused ----------------------------------------------------------------------------------------------

REFUSED = {
    "another size": (
        [N("Less", ["s", "half"], ["m2"]), N("Compress", ["x", "m2"], ["q"], axis=0), N("Add", ["r", "q"], ["y"])],
        "dimension 0 of 'q'",
    ),
    "a fixed size": ([N("Add", ["r", "x"], ["y"])], "dimension 0 of 'x' has 12 elements"),
    "a window": (
        [
            N("Transpose", ["r"], ["t"]),
            N("Unsqueeze", ["t", "z"], ["u"]),
            N("LpPool", ["u"], ["y"], kernel_shape=[3]),
        ],
        "dimension 2 of 'u'",
    ),
    "a fixed shape": ([N("Reshape", ["r", "fixed"], ["y"])], "dimension 0 of 'r'"),
    "into others": ([N("Transpose", ["r"], ["t"]), N("Reshape", ["t", "flat"], ["y"])], "dimension 1 of 't'"),
    "from the end": ([N("Slice", ["r", "minus", "far"], ["y"])], "dimension 0 of 'r'"),
    "the last of the best": ([N("ArgMax", ["r"], ["y"], axis=0, select_last_index=1)], "dimension 0 of 'r'"),
    "a pad before it": (
        [
            *COUNT,
            N("Sub", ["twelve", "n"], ["rest"]),
            N("Unsqueeze", ["rest", "z"], ["rest1"]),
            N("Concat", ["rest1", "z", "z", "z"], ["behind"], axis=0),
            N("Pad", ["r", "behind"], ["y"]),
        ],
        "dimension 0 of 'r'",
    ),
    "a pad": ([N("Pad", ["r", "pads"], ["y"], mode="edge")], "dimension 0 of 'r'"),
    "repeats": (
        [
            *COUNT,
            N("Unsqueeze", ["n", "z"], ["n1"]),
            N("Concat", ["n1", "one"], ["t"], axis=0),
            N("Tile", ["r", "t"], ["y"]),
        ],
        "dimension 0 of 'r'",
    ),
    "halves": ([N("Split", ["r"], ["y", "y2"], axis=0)], "dimension 0 of 'r'"),
    "none of it": ([N("Cast", ["r"], ["whole"], to=I), N("Mul", ["whole", "i0"], ["y"])], "dimension 0 of 'whole'"),
    "like it": ([N("EyeLike", ["r"], ["y"])], "dimension 0 of 'r'"),
    "a mean over it": (
        [
            N("Transpose", ["r"], ["t"]),
            N("Unsqueeze", ["t", "z"], ["u"]),
            N("InstanceNormalization", ["u", "four", "four"], ["y"]),
        ],
        "dimension",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_in_a_sentence(name: str, tmp_path: Path) -> None:
    nodes, place = REFUSED[name]
    case = rows(
        nodes, "y", fixed=ints(4, 12), flat=ints(-1), minus=ints(-2), far=ints(2**62), pads=ints(1, 0, 0, 0),
        twelve=ints(12)[0], four=np.ones(4, np.float32),
    )  # fmt: skip
    with pytest.raises(ModelError, match=f"node '{nodes[-1].op_type}") as error:
        import_model(saved(case, tmp_path / "m.onnx"))
    assert place in str(error.value)


def test_an_index_of_a_row_that_is_not_there_ends_the_run(tmp_path: Path) -> None:
    case = rows([N("Gather", ["r", "at"], ["y"], axis=0)], "y", at=ints(3))
    modelc.compile(saved(case, tmp_path / "m.onnx"), output=tmp_path / "p", database=False, verify=False)
    x, runs = ROWS[0]["x"], 0
    with load(tmp_path / "p") as model:
        for count in (0, 3, 4, 12):
            s = (np.arange(12) < count).astype(np.float32)
            if count <= 3:
                with pytest.raises(LoadedError, match="Gather"):
                    model.run({"x": x, "s": s})
            else:
                assert np.array_equal(model.run({"x": x, "s": s})["y"], x[3:4])
            runs += 1
    assert runs == 4
