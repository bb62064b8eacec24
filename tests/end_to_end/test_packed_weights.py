"""Weights of few bits stay packed where a product waits for them, and are taken apart in registers: packages beside
ONNX Runtime, how many bytes they hold, and where weights become float32 after all."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from disassembly import disassembled
from microsoft_models import ms, write
from onnx import TensorProto, helper, numpy_helper
from tiny_package import skip_without_tools

import modelc
from modelc.ir.graph import Node, Value
from modelc.ops import evaluate_node
from modelc.ops.packed import packed, words
from modelc.package import read_package
from modelc.passes import Machine
from modelc.target import load_target

F = np.float32
DEPTH, COLUMNS = 512, 384


def weights(bits: int, block: int, depth: int = DEPTH, columns: int = COLUMNS):
    """Of MatMulNBits, and its attributes."""
    rng, blocks = np.random.default_rng(bits), -(-depth // block)
    known = dict(
        B=rng.integers(0, 256, (columns, blocks, block * bits // 8)).astype(np.uint8),
        s=(rng.uniform(0.5, 1.5, (columns, blocks)) / 2**bits / depth**0.5).astype(F),
        z=rng.integers(0, 256, (columns, -(-blocks * bits // 8))).astype(np.uint8),
        bias=rng.standard_normal(columns).astype(F),
    )
    return known, dict(K=depth, N=columns, bits=bits, block_size=block)


def compiled(path: Path, **options) -> modelc.compile.result.CompileResult:
    """For a shipped target, by whose numbers it is decided what stays packed."""
    result = modelc.compile(path, "x86-64-v3", path.with_suffix(".modelc"), database=False, **options)
    assert result.report.passed
    return result


@pytest.fixture
def weights_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """The network's weights stay in no cache."""
    monkeypatch.setattr(Machine, "of", lambda *about: Machine(kept_bytes=0))


@pytest.mark.parametrize("rows, is_packed", [(1, True), (6, True), (16, True), (17, False)])
def test_few_rows_are_multiplied_with_packed_weights_out_of_memory(
    tmp_path, weights_in_memory, rows, is_packed
) -> None:
    known, attrs = weights(4, 32)
    feeds = {"x": np.random.default_rng(1).standard_normal((rows, DEPTH)).astype(F)}
    result = compiled(write(tmp_path / "m.onnx", [ms("MatMulNBits", "x B s z", "y", **attrs)], feeds, known, "y"))
    assert ("packed" in read_package(result.path).manifest.variants[0].steps[0].name) == is_packed


@pytest.mark.parametrize("bits, block", [(2, 16), (4, 32), (8, 128)])
def test_one_row_is_multiplied_with_packed_weights(tmp_path, bits, block) -> None:
    """With zero points, and with a bias, which is added in the same kernel."""
    known, attrs = weights(bits, block)
    feeds = {"x": np.random.default_rng(0).standard_normal((1, DEPTH)).astype(F)}
    nodes = [ms("MatMulNBits", f"x B s{more}", f"y{k}", **attrs) for k, more in enumerate((" z", " . . bias"))]
    result = compiled(write(tmp_path / "m.onnx", nodes, feeds, known, "y0 y1"))
    scales = DEPTH // block * COLUMNS
    least = DEPTH * COLUMNS * bits // 8 + 4 * scales
    assert least <= result.params_bytes <= least + scales + 4 * COLUMNS + 256  # of both together
    assert result.params_bytes < 4 * DEPTH * COLUMNS / 2
    steps = read_package(result.path).manifest.variants[0].steps
    assert len(steps) == 2 and all("packed" in step.name for step in steps)


def test_many_rows_are_multiplied_with_real_weights(tmp_path) -> None:
    """What a variant of one row leaves packed, one of many rows has in float32, beside it."""
    known, attrs = weights(4, 32)
    node = ms("MatMulNBits", "x B s z", "y", **attrs)
    feeds = {"x": np.zeros((1, DEPTH), F)}
    model = onnx.load(write(tmp_path / "m.onnx", [node], feeds, known, "y"))
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "rows"
    onnx.save(model, tmp_path / "m.onnx")
    result = compiled(tmp_path / "m.onnx", dims={"rows": (1, 256)})
    one, many = read_package(result.path).manifest.variants
    assert "packed" in one.steps[0].name and "packed" not in many.steps[0].name
    assert result.params_bytes >= 4 * DEPTH * COLUMNS + DEPTH * COLUMNS // 2


@pytest.mark.parametrize("rows", [(), (2, 3)])
def test_any_number_of_rows_is_right(tmp_path, weights_in_memory, rows) -> None:
    """Ends of vectors are whole in packed weights."""
    known, attrs = weights(4, 16, 96, 37)
    feeds = {"x": np.random.default_rng(1).standard_normal((*rows, 96)).astype(F)}
    result = compiled(write(tmp_path / "m.onnx", [ms("MatMulNBits", "x B s z", "y", **attrs)], feeds, known, "y"))
    assert "packed" in read_package(result.path).manifest.variants[0].steps[0].name


def test_a_block_that_is_not_full_is_real(tmp_path) -> None:
    known, attrs = weights(4, 32, 80, 24)
    feeds = {"x": np.ones((1, 80), F)}
    result = compiled(write(tmp_path / "m.onnx", [ms("MatMulNBits", "x B s z", "y", **attrs)], feeds, known, "y"))
    assert "packed" not in read_package(result.path).manifest.variants[0].steps[0].name


@pytest.mark.parametrize(
    "target, instruction, block, columns, more",
    [
        ("x86-64-v3", "vpmaddubsw", 16, 37, " z"),
        ("x86-64-v3", "vpmaddubsw", 128, 64, ""),
        ("native", "", 64, 40, ""),
        ("cortex-a76", "sdot", 32, 20, " z"),
        ("armv7-neon", "", 32, 12, ""),
    ],
)
@pytest.mark.sweep(3)
def test_activations_are_bytes_where_that_is_asked_for(tmp_path, target, instruction, block, columns, more) -> None:
    """Rounded as ONNX Runtime does on every target, and multiplied so where it has dot products of bytes."""
    skip_without_tools(load_target(target).triple)
    known, attrs = weights(4, block, 256, columns)
    node = ms("MatMulNBits", f"x B s{more}", "y", **attrs, accuracy_level=4)
    feeds = {"x": np.random.default_rng(1).standard_normal((1, 256)).astype(F)}
    path = write(tmp_path / "m.onnx", [node], feeds, known, "y")
    result = modelc.compile(path, target, tmp_path / "m.modelc", database=False)
    assert result.report.passed and all(output.distance.rms_rel < 1e-5 for output in result.report.outputs)
    (variant,) = read_package(result.path).manifest.variants
    if target != "native":
        assert any(step.name.startswith("packeddot" if instruction else "packedmatmul") for step in variant.steps)
    if instruction:
        code = disassembled(next(result.path.glob("*.so")), load_target(target).triple)
        assert any(text.startswith(instruction) for _, text in code)


def test_vnni_multiplies_them_where_there_is_such(tmp_path) -> None:
    """Its code is looked at; it is run where the machine has it, by the test above with `native`."""
    known, attrs = weights(4, 32, 256, 64)
    node = ms("MatMulNBits", "x B s", "y", **attrs, accuracy_level=4)
    feeds = {"x": np.random.default_rng(1).standard_normal((1, 256)).astype(F)}
    path = write(tmp_path / "m.onnx", [node], feeds, known, "y")
    result = modelc.compile(path, "sapphire-rapids", tmp_path / "m.modelc", database=False, verify=False)
    code = disassembled(next(result.path.glob("*.so")), load_target("sapphire-rapids").triple)
    assert any(text.startswith("vpdpbusd") for _, text in code)


def test_many_rows_are_multiplied_as_bytes_as_well(tmp_path) -> None:
    known, attrs = weights(4, 32, 64, 24)
    node = ms("MatMulNBits", "x B s", "y", **attrs, accuracy_level=4)
    feeds = {"x": np.random.default_rng(1).standard_normal((40, 64)).astype(F)}
    path = write(tmp_path / "m.onnx", [node], feeds, known, "y")
    result = modelc.compile(path, "x86-64-v3", tmp_path / "m.modelc", database=False)
    (variant,) = read_package(result.path).manifest.variants
    assert any(step.name.startswith("packeddot") for step in variant.steps)
    assert all(output.distance.rms_rel < 1e-5 for output in result.report.outputs)


@pytest.mark.parametrize("bits", [2, 4])
def test_a_word_has_numbers_of_four_bytes(bits) -> None:
    numbers = np.random.default_rng(bits).integers(0, 1 << bits, (96, 5)).astype(np.uint8)
    data = words(numbers, bits, 32)
    assert data.shape == (3, bits, 5) and data.nbytes * 8 == numbers.size * bits
    bytes_ = data.view(np.uint32)[..., None] >> (8 * np.arange(4, dtype=np.uint32)) & 255
    parts = [bytes_ >> shift & (1 << bits) - 1 for shift in range(0, 8, bits)]
    apart = np.stack(parts, 1).transpose(0, 1, 2, 4, 3).reshape(96, 5)
    np.testing.assert_array_equal(apart, numbers)


INT4, UINT4 = TensorProto.INT4, TensorProto.UINT4


@pytest.mark.parametrize(
    "kind, scales, zeros, turned",
    [
        (INT4, (16, COLUMNS), False, False),
        (UINT4, (COLUMNS, 8), True, True),
        (TensorProto.INT8, (COLUMNS,), False, False),
        (TensorProto.INT8, (), True, False),
    ],
)
@pytest.mark.sweep(2)
def test_weights_that_a_quantizer_wrote(tmp_path, kind, scales, zeros, turned) -> None:
    """DequantizeLinear of constants of one byte or four bits: by block, by column, by one scale."""
    rng, depth = np.random.default_rng(3), DEPTH
    bits, signed = (4 if kind in (INT4, UINT4) else 8), kind in (INT4, TensorProto.INT8)
    least = -(1 << (bits - 1)) if signed else 0
    shape = (COLUMNS, depth) if turned else (depth, COLUMNS)
    numbers = rng.integers(least, least + (1 << bits), shape)
    init = [helper.make_tensor("q", kind, shape, numbers.reshape(-1).tolist())]
    init.append(numpy_helper.from_array((rng.uniform(0.5, 1.5, scales) / (1 << bits) / 20).astype(F), "s"))
    if zeros:
        some = rng.integers(least, least + (1 << bits), scales)
        init.append(helper.make_tensor("z", kind, scales, some.reshape(-1).tolist()))
    axis = {"axis": 0 if turned else 1} if len(scales) == 1 else {}
    if len(scales) == 2:
        axis = {"axis": int(turned), "block_size": depth // scales[int(turned)]}
    nodes = [helper.make_node("DequantizeLinear", ["q", "s", *["z"] * zeros], ["w"], **axis)]
    nodes += [helper.make_node("Transpose", ["w"], ["t"], perm=[1, 0])] if turned else []
    nodes.append(helper.make_node("MatMul", ["x", "t" if turned else "w"], ["y"]))
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, d]) for n, d in (("x", depth), ("y", COLUMNS)))
    graph = helper.make_graph(nodes, "g", [x], [y], init)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), tmp_path / "m.onnx")
    result = compiled(tmp_path / "m.onnx")
    assert [s.name.startswith("packed") for s in read_package(result.path).manifest.variants[0].steps] == [True]
    assert result.params_bytes < depth * COLUMNS * bits / 8 * 1.5


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("block", [16, 48])
def test_what_is_packed_means_the_product(bits, zeros, block) -> None:
    rng, depth, columns = np.random.default_rng(bits), 48, 5
    numbers = rng.integers(0, 1 << bits, (depth, columns)).astype(np.uint8)
    scales = rng.uniform(0.1, 1, (depth // block, columns)).astype(F)
    zero = rng.integers(0, 1 << bits, scales.shape).astype(np.uint8)
    x = rng.standard_normal((2, 3, depth)).astype(F)
    data = packed(numbers, bits, block)
    assert data.shape == (48 // block, block * bits // 8, columns) and data.nbytes == numbers.size * bits // 8
    values = [x, data, scales, *([zero] if zeros else [])]
    inputs = tuple(Value(f"x{k}", str(v.dtype), v.shape, v) for k, v in enumerate(values))
    attrs = {"bits": bits, "block": block, **({} if zeros else {"zero": 3.0})}
    node = Node("PackedMatMul", "p", tuple(v.name for v in inputs), ("y",), attrs)
    (found,) = evaluate_node(node, inputs)
    known = numbers.astype(np.float64) - (np.repeat(zero, block, 0) if zeros else 3.0)
    np.testing.assert_allclose(found, x @ (known * np.repeat(scales, block, 0)), rtol=1e-5, atol=1e-5)
