"""The same bits for any number of threads: every kind of kernel and every dtype, in packages that `compile` makes and
the loader runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ml_dtypes
import networks
import numpy as np
import onnx
import pytest
import quantized_models
import quantizers
import random_graphs
import trained_models
from control_models import branching
from microsoft_models import ms
from node_models import model_of
from onnx import helper
from random_number_models import speech
from repository import ROOT
from three_ways import host_target, tensor_target

import modelc
from modelc.errors import TargetError
from modelc.package import (
    Argument,
    PackageSpec,
    PackageTarget,
    Plan,
    Step,
    TensorInfo,
    find_toolchain,
    read_package,
    write_package,
)
from modelc.partition.narrow_products import require
from modelc.plan import program
from modelc.runtime import load
from modelc.space.sketches import maps, packing, rows
from modelc.space.tiling.tiled import Tiled
from modelc.target import Target, load_target
from modelc.verify.check import drawn

THREADS = (1, 2, 3, 4, 8)
CORES = 8  # for which loops are cut, so that each of 8 threads gets a part
SAMPLES = 2
Arrays = dict[str, np.ndarray]
Writer = Callable[[Path], object]
node = helper.make_node


# --- what is compared ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Compared:
    """What was compared: a package's plan, the steps of it that threads share, and how many elements of outputs."""

    plan: Plan
    shared: tuple[Step, ...]
    elements: int


def compared(package: Path, feeds: Sequence[Arrays]) -> Compared:
    """Runs the package on every number of threads, with all inputs twice, and compares the bits of all outputs."""
    (plan,) = read_package(package).manifest.variants
    alone, elements = outputs_of(package, 1, [*feeds, *feeds]), 0
    for threads in THREADS[1:]:
        for k, outputs in enumerate(outputs_of(package, threads, [*feeds, *feeds])):
            assert outputs.keys() == alone[k].keys()
            for name, array in outputs.items():
                assert array.shape == alone[k][name].shape
                assert array.tobytes() == alone[k][name].tobytes(), f"{name} on {threads} threads, run {k}"
                elements += array.size
    return Compared(plan, tuple(step for step in plan.steps if step.extent > 1 and not step.serial), elements)


def outputs_of(package: Path, threads: int, feeds: Sequence[Arrays]) -> list[Arrays]:
    """The outputs of the runs of one handle, which has as many threads as it is asked for."""
    with load(package, threads=threads) as model:
        assert model.threads == threads
        return [{name: array.copy() for name, array in model.run(feed).items()} for feed in feeds]


@pytest.fixture
def every_step_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads share steps too that are over before a second thread has woken up."""
    for module in (maps, packing, rows):
        monkeypatch.setattr(module, "SERIAL_POINTS", 2)
    monkeypatch.setattr(Tiled, "is_small", False)
    for name in ("SERIAL_FLOPS", "SERIAL_BYTES"):
        monkeypatch.setattr(program, name, 0)


# --- networks -----------------------------------------------------------------------------------------------------


def weight(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32) / 4


def graph(*nodes: onnx.NodeProto, version: int = 17, dtype: Any = "float32", **values: Any) -> Writer:
    """Writes nodes with inputs of one dtype, for which shapes stand, and with constants, real ones of that dtype."""

    def write(path: Path) -> None:
        constants = {name: x for name, x in values.items() if not isinstance(x, tuple)}
        constants = {name: x.astype(dtype) if x.dtype.kind == "f" else x for name, x in constants.items()}
        feeds = {name: np.zeros(x, dtype) for name, x in values.items() if isinstance(x, tuple)}
        onnx.save(model_of(nodes, feeds, {"": version, "com.microsoft": 1}, **constants), path)

    return write


def chain(*operators: str) -> list[onnx.NodeProto]:
    """x through one operator after the other."""
    names = ["x", *(f"v{k}" for k in range(len(operators)))]
    return [node(op, [a], [b]) for op, a, b in zip(operators, names[:-1], names[1:], strict=True)]


def reductions(*operators: str) -> list[onnx.NodeProto]:
    """x over its rows, its columns and as a whole, by every operator."""
    every = {"rows": [0], "columns": [1], "whole": [0, 1]}
    return [node(f"Reduce{op}", ["x"], [f"{op}_{of}"], axes=axes) for op in operators for of, axes in every.items()]


def recurrent(op: str, gates: int) -> Writer:
    """20 steps in both directions."""
    size, width = 24, 17
    layer = node(op, ["x", "w", "r"], ["y"], hidden_size=size, direction="bidirectional")
    return graph(layer, x=(20, 3, width), w=weight(2, gates * size, width), r=weight(2, gates * size, size))


def of_dtype(dtype: Any) -> Writer:
    """What there is for numbers of every dtype: arithmetic, comparisons, moves, a sum, and a product where there is."""
    nodes = [
        node("Add", ["x", "row"], ["a"]),
        node("Mul", ["a", "x"], ["m"]),
        node("Greater", ["m", "x"], ["greater"]),
        node("Where", ["greater", "m", "row"], ["w"]),
        node("Transpose", ["w"], ["t"]),
        node("Cast", ["w"], ["single"], to=onnx.TensorProto.FLOAT),
    ]
    if not np.dtype(dtype).name.endswith("int16"):  # ONNX has no reductions of them
        nodes.append(node("ReduceMax", ["m"], ["most"], axes=[1]))
    products = ("float32", "float64", "float16", "bfloat16", "int32", "int64", "uint32", "uint64")
    if np.dtype(dtype).name in products:
        nodes.append(node("MatMul", ["w", "t"], ["p"]))
    return graph(*nodes, dtype=dtype, x=(61, 133), row=(133,))


def looping(path: Path) -> None:
    """x = tanh(x w), as often as an input says."""
    body = helper.make_graph(
        [node("MatMul", ["a", "w"], ["p"]), node("Tanh", ["p"], ["next"]), node("Identity", ["go"], ["on"])],
        "body",
        [helper.make_tensor_value_info(name, kind, shape) for name, kind, shape in (("i", 7, []), ("go", 9, []))]
        + [helper.make_tensor_value_info("a", 1, [37, 65])],
        [helper.make_tensor_value_info("on", 9, []), helper.make_tensor_value_info("next", 1, [37, 65])],
    )
    feeds = {"n": np.zeros((), np.int64), "x": np.zeros((37, 65), np.float32)}
    loop = node("Loop", ["n", "", "x"], ["y"], "loop", body=body)
    onnx.save(model_of([loop], feeds, {"": 17}, w=weight(65, 65)), path)


HEADS = dict.fromkeys(("q", "k", "v"), (2, 3, 45, 16))
KINDS: dict[str, Writer] = {
    "product": graph(node("MatMul", ["x", "w"], ["m"]), node("Relu", ["m"], ["y"]), x=(37, 65), w=weight(65, 49)),
    "product of one row": graph(
        node("Gemm", ["x", "w", "b"], ["y"], transB=1), x=(1, 300), w=weight(130, 300), b=weight(130)
    ),
    "products of two inputs": graph(node("MatMul", ["a", "b"], ["y"]), a=(3, 19, 33), b=(3, 33, 21)),
    "long product": graph(node("MatMul", ["x", "w"], ["y"]), x=(3, 4000), w=weight(4000, 5)),
    "window": graph(
        node("Conv", ["x", "w"], ["y"], strides=[2, 2], pads=[3] * 4), x=(1, 3, 41, 37), w=weight(20, 3, 7, 7)
    ),
    "window of each channel": graph(
        node("Conv", ["x", "w"], ["y"], pads=[1] * 4, group=24), x=(2, 24, 17, 13), w=weight(24, 1, 3, 3)
    ),
    "window in three dimensions": graph(node("Conv", ["x", "w"], ["y"]), x=(1, 5, 7, 9, 11), w=weight(9, 5, 3, 3, 3)),
    "transposed window": graph(
        node("ConvTranspose", ["x", "w"], ["y"], strides=[2, 2]), x=(1, 9, 11, 13), w=weight(9, 12, 4, 4)
    ),
    "attention": graph(
        node("Transpose", ["k"], ["t"], perm=[0, 1, 3, 2]),
        node("MatMul", ["q", "t"], ["scores"]),
        node("Add", ["scores", "m"], ["masked"]),
        node("Softmax", ["masked"], ["p"], axis=-1),
        node("MatMul", ["p", "v"], ["y"]),
        **HEADS,
        m=(2, 1, 1, 45),
    ),
    "attention of ONNX Runtime": graph(
        ms("MultiHeadAttention", "q k v", "y", num_heads=4), **dict.fromkeys(HEADS, (2, 33, 64))
    ),
    "reductions": graph(*reductions("Mean", "Max", "L2", "LogSumExp", "Prod"), x=(131, 257), version=12),
    "long reductions": graph(*reductions("Sum", "Min", "L1", "SumSquare"), x=(3, 40_001), version=12),
    "softmax": graph(node("Softmax", ["x"], ["y"], axis=-1), node("LogSoftmax", ["x"], ["z"], axis=0), x=(67, 999)),
    "normalised": graph(
        node("LayerNormalization", ["x", "s", "b"], ["y"]),
        node("InstanceNormalization", ["x", "s9", "b9"], ["z"]),
        **{"x": (3, 9, 129), "s": weight(129), "b": weight(129), "s9": weight(9), "b9": weight(9)},
    ),
    "elementwise": graph(*chain("Tanh", "Erf", "Sigmoid", "Exp", "Softplus", "Sin"), x=(5, 7, 1001)),
    "broadcast": graph(
        node("Mul", ["x", "a"], ["m"]), node("Add", ["m", "b"], ["y"]), x=(9, 1, 130), a=(1, 17, 1), b=(17, 130)
    ),
    "moved": graph(
        node("Transpose", ["x"], ["t"], perm=[2, 0, 1]),
        node("Concat", ["t", "t"], ["k"], axis=1),
        node("Pad", ["k", "pads"], ["y"], mode="reflect"),
        x=(19, 33, 47),
        pads=np.array([1, 0, 2, 3, 1, 0]),
    ),
    "pooled": graph(
        node("MaxPool", ["x"], ["y"], kernel_shape=[3, 3], strides=[2, 2]),
        node("AveragePool", ["x"], ["z"], kernel_shape=[2, 3], pads=[1, 1, 0, 1]),
        node("GlobalAveragePool", ["x"], ["g"]),
        x=(2, 13, 31, 29),
    ),
    "chosen": graph(
        node("TopK", ["x", "five"], ["values", "indices"]),
        node("CumSum", ["x", "axis"], ["sums"]),
        node("ArgMax", ["x"], ["best"], axis=1),
        node("NonZero", ["x"], ["places"]),
        node("Unique", ["x"], ["unique"], sorted=1),
        x=(57, 83),
        five=np.array([5]),
        axis=np.array(1),
    ),
    "sampled": graph(
        node("Resize", ["x", "", "scales"], ["large"], mode="cubic"),
        node("GridSample", ["x", "grid"], ["moved"]),
        node("Gather", ["x", "picks"], ["picked"], axis=2),
        node("ScatterElements", ["x", "places", "part"], ["scattered"], axis=0),
        **{"x": (2, 3, 19, 23), "grid": (2, 31, 17, 2), "part": (1, 3, 19, 23)},
        scales=np.array([1, 1, 2.5, 1.5], np.float32),
        picks=np.array([3, 0, 7, 7]),
        places=np.ones((1, 3, 19, 23), np.int64),
    ),
    "LSTM": recurrent("LSTM", 4),
    "GRU": recurrent("GRU", 3),
    "RNN": recurrent("RNN", 1),
    "branches": branching,
    "loops": looping,
    "random numbers": lambda path: onnx.save(speech(), path),
}
FILTERED = graph(node("Conv", ["x", "w"], ["y"], pads=[1] * 4), x=(1, 64, 28, 30), w=weight(64, 64, 3, 3))
SQUARE = graph(node("MatMul", ["x", "w"], ["y"]), x=(1024, 512), w=weight(512, 512))
IN_BFLOAT16: dict[str, Writer] = {
    "product": graph(node("MatMul", ["x", "w"], ["y"]), x=(330, 256), w=weight(256, 200)),
    "window": FILTERED,
    "attention": KINDS["attention"],
}
QUANTIZED: dict[str, Writer] = {
    "QDQ of unsigned bytes": quantized_models.conv_net,
    "QDQ of signed bytes": lambda path: quantized_models.conv_net(path, "int8"),
    "dynamic": lambda path: quantizers.dynamically(quantizers.mlp(path.with_suffix(".f.onnx")), path, "s8"),
    "dynamic LSTM": lambda path: quantizers.dynamically(quantizers.recurrent(path.with_suffix(".f.onnx")), path, "s8"),
    "dynamic transformer": lambda path: quantizers.dynamically(
        quantizers.transformer(path.with_suffix(".f.onnx")), path, "u8"
    ),
    "four bits": lambda path: quantizers.of_few_bits(quantizers.mlp(path.with_suffix(".f.onnx")), path, 4, False),
}
NETWORKS: dict[str, Callable[[], onnx.ModelProto]] = {
    "resnet": lambda: networks.resnet(18, 8, 64, 10),
    "resnet50": lambda: networks.resnet(50, 8, 32, 10),
    "resnet3d": lambda: networks.resnet3d(4, 4, 24, 10),
    "mobilenet": lambda: networks.mobilenet(0.25, 64, 10),
    "dcgan": lambda: networks.dcgan(8, 20),
    "bert": lambda: networks.bert(2, 64, 4, 32, 100),
    "gpt2": lambda: networks.gpt2(2, 64, 4, 32, 100, 64),
    "vit": lambda: networks.vit(2, 64, 4, 32, 8, 10),
}
DTYPES = ("float32", "float64", "float16", ml_dtypes.bfloat16)
DTYPES += tuple(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))


# --- packages -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tally() -> Iterator[Counter[str]]:
    """Counts what is compared, and prints it in the end (`pytest -s`)."""
    counts = Counter[str]()
    yield counts
    print("\ncompared:", ", ".join(f"{count} {what}" for what, count in counts.items()))


@pytest.fixture
def same_bits(tmp_path: Path, tally: Counter[str]) -> Callable[..., Plan]:
    """Compiles a network and compares; threads have to share some of its steps."""

    def check(write: Writer, target: Target, feeds: Sequence[Arrays] = (), **options: Any) -> Plan:
        path, package = tmp_path / "m.onnx", tmp_path / "m.modelc"
        write(path)
        modelc.compile(path, target, package, verify=False, database=False, threads=1, **options)
        result = compared(package, feeds or [*drawn(read_package(package), path, samples=SAMPLES)])
        tally.update({"packages": 1, "steps that threads share": len(result.shared), "numbers": result.elements})
        assert feeds or (result.shared and result.elements)
        return result.plan

    return check


def plain() -> Target:
    """Vectors alone, so that what is compared does not depend on this machine's CPU; cut for eight threads."""
    return eager(host_target())


def full() -> Target:
    """Every instruction that this machine has; cut for eight threads."""
    return eager(tensor_target())


def bfloat16_wins() -> Target:
    """The same with units for bfloat16 so fast that no kernel in float32, by Winograd's rule or another, costs less."""
    units = [unit.name for unit in full().available_intrinsics if unit.multiplies == "bfloat16"]
    return replace(full(), throughput=dict.fromkeys(units, 32.0))


def eager(target: Target) -> Target:
    """The same machine with eight cores that are woken for nothing: kernels too small for it go to threads as well."""
    return replace(target, cores=CORES, cost=replace(target.cost, fork_join_seconds=0.0))


SOURCE = """#include <stdint.h>
void k(float *x, float *y, uint8_t *s, int32_t begin, int32_t end) {
    for (int32_t i = begin; i < end; i++) y[i] = x[i] + %s;
}
"""


@pytest.mark.parametrize(("added", "same"), [("i", True), ("begin", False)])
def test_bits_that_depend_on_how_a_loop_is_cut_are_noticed(tmp_path: Path, added: str, same: bool) -> None:
    triple = plain().triple
    (tmp_path / "k.c").write_text(SOURCE % added)
    find_toolchain(triple).compile(["-fPIC", "-O1", "-c", "k.c"], tmp_path)
    x, y = TensorInfo("x", "float32", (64,)), TensorInfo("y", "float32", (64,))
    plan = Plan((x,), (y,), (Step("k", "k", (Argument("input"), Argument("output")), extent=64),))
    objects = {"k": (tmp_path / "k.o").read_bytes()}
    write_package(PackageSpec("m", PackageTarget("any", triple), (plan,), objects), tmp_path / "p.modelc")
    feeds = [{"x": np.zeros(64, np.float32)}]
    if same:
        assert compared(tmp_path / "p.modelc", feeds).elements == 64 * 2 * len(THREADS[1:])
    else:
        with pytest.raises(AssertionError, match="y on 2 threads, run 0"):
            compared(tmp_path / "p.modelc", feeds)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.sweep(4)
def test_every_kind_of_kernel(same_bits, every_step_shared: None, kind: str) -> None:
    same_bits(KINDS[kind], plain())


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda x: np.dtype(x).name)
@pytest.mark.sweep(2)
def test_every_dtype(same_bits, every_step_shared: None, dtype: Any) -> None:
    same_bits(of_dtype(dtype), plain())


def test_minimal_filtering(same_bits) -> None:
    assert any(step.error_bound for step in same_bits(FILTERED, plain()).steps)


def test_strassen(same_bits, tmp_path: Path) -> None:
    same_bits(SQUARE, plain())
    assert '"strassen"' in (tmp_path / "m.modelc/choices.json").read_text()


@pytest.mark.parametrize("target", [plain, full])
@pytest.mark.parametrize("kind", QUANTIZED)
@pytest.mark.sweep(1)
def test_whole_numbers(same_bits, every_step_shared: None, kind: str, target: Callable[[], Target]) -> None:
    same_bits(QUANTIZED[kind], target())


@pytest.mark.parametrize("kind", IN_BFLOAT16)
def test_bfloat16(same_bits, every_step_shared: None, kind: str) -> None:
    try:
        require(full(), "bf16")
    except TargetError as error:
        pytest.skip(str(error))
    plan = same_bits(IN_BFLOAT16[kind], bfloat16_wins(), precision="bf16")
    assert any(step.dtype == "bfloat16" for step in plan.steps)


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.sweep(1)
def test_networks(same_bits, name: str) -> None:
    same_bits(lambda path: onnx.save(NETWORKS[name](), path), plain())


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.sweep(2)
def test_random_graphs(same_bits, every_step_shared: None, seed: int) -> None:
    model, feeds, _ = random_graphs.draw(seed)
    same_bits(lambda path: onnx.save(model, path), plain(), [feeds])


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_kernel_of_this_machine(same_bits, every_step_shared: None, kind: str) -> None:
    same_bits(KINDS[kind], full())


@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
def test_networks_on_this_machine(same_bits, name: str) -> None:
    same_bits(lambda path: onnx.save(NETWORKS[name](), path), load_target("native"))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12, 200))
def test_more_random_graphs(same_bits, every_step_shared: None, seed: int) -> None:
    test_random_graphs(same_bits, every_step_shared, seed)


@pytest.mark.slow
@pytest.mark.parametrize("name", trained_models.catalogue())
def test_trained_models(same_bits, name: str) -> None:
    """Only those that scripts/fetch_models.py has put into models/."""
    path, entry = ROOT / f"models/{name}.onnx", trained_models.catalogue()[name]
    if not path.exists():
        pytest.skip(f"python scripts/fetch_models.py {name}")
    options = {"shapes": trained_models.shapes_of(name), "constants": entry.get("constant", {})}
    same_bits(lambda copy: copy.write_bytes(path.read_bytes()), load_target("native"), **options)
