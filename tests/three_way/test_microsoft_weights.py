"""Weights of few bits and the quantized LSTM of ONNX Runtime's own domain mean what they mean there."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from microsoft_models import ms, three_ways, two_ways, write

from modelc.errors import ModelError
from modelc.frontend.microsoft.blocks import unpacked
from modelc.frontend.onnx import import_model
from modelc.package import read_package

F = np.float32


def few_bits(bits: int, block: int, depth: int = 80, columns: int = 24, rows: int = 3):
    """Feeds and constants of MatMulNBits, of which the last block is not full, and its attributes."""
    rng, blocks = np.random.default_rng(bits), -(-depth // block)
    known = dict(
        B=rng.integers(0, 256, (columns, blocks, block * bits // 8)).astype(np.uint8),
        s=rng.uniform(0.01, 0.1, (columns, blocks)).astype(F),
        z=rng.integers(0, 256, (columns, -(-blocks * bits // 8))).astype(np.uint8),
        zr=rng.uniform(5, 9, (columns, blocks)).astype(F),
        g=rng.integers(0, blocks, depth).astype(np.int32),
        bias=rng.standard_normal(columns).astype(F),
    )
    attrs = dict(K=depth, N=columns, bits=bits, block_size=block)
    return {"x": rng.standard_normal((rows, depth)).astype(F)}, known, attrs


@pytest.mark.parametrize("block", [16, 32])
@pytest.mark.parametrize("bits", [2, 4, 8])
def test_weights_of_few_bits(tmp_path: Path, bits: int, block: int) -> None:
    """With zero points in the middle, packed and real, permuted, with a bias: what ONNX Runtime has of these."""
    feeds, known, attrs = few_bits(bits, block)
    inputs = ["x B s", "x B s z", "x B s . . bias", *(["x B s zr"] if bits < 8 else [])]
    inputs += ["x B s . g bias", "x B s zr g"] if bits == 4 else []
    nodes = [ms("MatMulNBits", names, f"y{k}", **attrs) for k, names in enumerate(inputs)]
    outputs = " ".join(f"y{k}" for k in range(len(nodes)))
    two_ways(write(tmp_path / "m.onnx", nodes, feeds, known, outputs), feeds)


@pytest.mark.parametrize(("bits", "block"), [(4, 16), (4, 32), (8, 32)])
def test_rows_of_few_bits_that_are_looked_up(tmp_path: Path, bits: int, block: int) -> None:
    """In bytes, with zero points and without, and stored so in a package; int4 too."""
    rng, rows, depth = np.random.default_rng(bits), 200, 96
    known = dict(
        t=rng.integers(0, 256, (rows, depth * bits // 8)).astype(np.uint8),
        s=rng.uniform(-0.1, 0.1, (rows, depth // block)).astype(F),
        z=rng.integers(0, 256, (rows, -(-depth // block * bits // 8))).astype(np.uint8),
    )
    feeds = {"i": rng.integers(-rows, rows, (2, 5)).astype(np.int64)}
    attrs = dict(bits=bits, block_size=block, gather_axis=0, quantize_axis=1)
    nodes = [ms("GatherBlockQuantized", names, f"y{k}", **attrs) for k, names in enumerate(("t i s", "t i s z"))]
    path = write(tmp_path / "m.onnx", nodes, feeds, known, "y0 y1")
    three_ways(path, feeds)
    assert read_package(path.with_suffix(".modelc")).manifest.params_bytes < 1.1 * sum(x.nbytes for x in known.values())


def test_the_lowest_bits_come_first() -> None:
    assert unpacked(np.array([[0x21, 0x43]], np.uint8), 4, 3).tolist() == [[1, 2, 3]]
    assert unpacked(np.array([[0b11100100]], np.uint8), 2, 4).tolist() == [[0, 1, 2, 3]]


def lstm(dtype: str, directions: int, batch: int, by_column: bool, time: int = 6):
    rng, features, hidden = np.random.default_rng(batch), 8, 5
    least, most, middle = (-63, 64, 0) if dtype == "int8" else (0, 256, 128)  # int8 of seven bits, or sums saturate
    scales = (directions, 4 * hidden) if by_column else (directions,)
    known = dict(
        W=rng.integers(least, most, (directions, features, 4 * hidden)).astype(dtype),
        R=rng.integers(least, most, (directions, hidden, 4 * hidden)).astype(dtype),
        B=rng.standard_normal((directions, 8 * hidden)).astype(F),
        P=rng.standard_normal((directions, 3 * hidden)).astype(F),
        ws=rng.uniform(0.002, 0.01, scales).astype(F),
        rs=rng.uniform(0.002, 0.01, scales).astype(F),
        z=np.full(scales, middle, dtype),
    )
    feeds = {"x": rng.standard_normal((time, batch, features)).astype(F)}
    feeds |= {k: rng.standard_normal((directions, batch, hidden)).astype(F) for k in "hc"}
    return feeds, known, hidden


@pytest.mark.parametrize(
    ("dtype", "direction", "batch", "by_column"),
    [("int8", "forward", 1, False), ("uint8", "reverse", 3, True), ("int8", "bidirectional", 3, True)],
)
def test_an_lstm_of_whole_numbers(tmp_path: Path, dtype: str, direction: str, batch: int, by_column: bool) -> None:
    feeds, known, hidden = lstm(dtype, 1 + (direction == "bidirectional"), batch, by_column)
    attrs = dict(hidden_size=hidden, direction=direction)
    nodes = [
        ms("DynamicQuantizeLSTM", "x W R B . h c . ws z rs z", "y yh yc", **attrs),
        ms("DynamicQuantizeLSTM", "x W R . . h c P ws z rs z", "peep", **attrs),
        ms("DynamicQuantizeLSTM", "x W R . . . . . ws z rs z", ". last", **attrs),
        ms("DynamicQuantizeLSTM", "x W R B . h c P ws z rs z", "clipped", clip=0.4, **attrs),
    ]
    two_ways(write(tmp_path / "m.onnx", nodes, feeds, known, "y yh yc peep last clipped"), feeds)


def test_steps_are_a_loop_however_many_there_are(tmp_path: Path) -> None:
    feeds, known, hidden = lstm("int8", 1, 1, True, time=128)
    node = ms("DynamicQuantizeLSTM", "x W R B . h c . ws z rs z", "y yh yc", hidden_size=hidden)
    path = write(tmp_path / "m.onnx", [node], feeds, known, "y yh yc")
    (loop,) = (n for n in import_model(path).nodes if n.op == "Loop")
    assert len(import_model(path).nodes) < 50 and len(loop.bodies[0].nodes) < 40
    three_ways(path, feeds)


def test_as_a_package(tmp_path: Path) -> None:
    """In one model; activations are not rounded to half floats although the model allows it."""
    feeds, known, hidden = lstm("int8", 1, 1, True)
    more, weights, attrs = few_bits(4, 32)
    nodes = [
        ms("DynamicQuantizeLSTM", "x W R B . h c . ws z rs z", "y", hidden_size=hidden),
        ms("MatMulNBits", "a b s zp", "m", **attrs),
    ]
    feeds |= {"a": more["x"]}
    known |= {"b": weights["B"], "s": weights["s"], "zp": weights["z"]}
    path = write(tmp_path / "m.onnx", nodes, feeds, known, "y m")
    result = three_ways(path, feeds)
    steps = read_package(path.with_suffix(".modelc")).manifest.variants[0].steps
    assert not any("accuracy_level" in note for note in result.notes)
    assert all("dequantize" not in step.name for step in steps)  # in a run
    model = onnx.load(path)
    model.graph.node[1].attribute.append(onnx.helper.make_attribute("accuracy_level", 2))
    onnx.save(model, path)
    assert "more than their accuracy_level asks for" in import_model(path).notes[0]


def test_what_is_not_compiled_is_said(tmp_path: Path) -> None:
    feeds, known, attrs = few_bits(4, 16)
    state, weights, hidden = lstm("int8", 1, 1, False)
    weights |= {"lengths": np.array([3], np.int32)}
    for node, given, held, sentence in (
        (ms("MatMulNBits", "x B s z g", "y", **attrs), feeds, known, "without packed zero points"),
        (ms("MatMulNBits", "x B s", "y", **{**attrs, "bits": 3}), feeds, known, "expected 2, 4 or 8 bits"),
        (ms("MatMulNBits", "x B s", "y", **{**attrs, "N": 25}), feeds, known, "expected 1000 bytes of weights"),
        (ms("MatMulNBits", "x x s", "y", **attrs), feeds, known, "expected a constant as weights"),
        (
            ms("GatherBlockQuantized", "t i s", "y", bits=4, block_size=16, gather_axis=1, quantize_axis=0),
            {"i": np.zeros(2, np.int64)},
            {"t": np.zeros((4, 8), np.uint8), "s": np.ones((4, 1), F)},
            "rows that are looked up",
        ),
        (
            ms("DynamicQuantizeLSTM", "x W R B lengths . . . ws z rs z", "y", hidden_size=hidden),
            state,
            weights,
            "sequences of full length",
        ),
    ):
        with pytest.raises(ModelError, match=sentence):
            import_model(write(tmp_path / "m.onnx", [node], given, held, "y"))
