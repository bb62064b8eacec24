"""Inputs that hide positions from a model, and lengths and positions of sequences: how they are used, how they are
drawn, and that a package that ignores them is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
import small_model as small
from microsoft_models import ms
from node_models import model_of
from onnx import TensorProto, helper

import modelc
from modelc.frontend.steering.masks import ADDED_MASK, BINARY_MASK, INVERTED_MASK, Dimension, Mask, lengths, masks
from modelc.frontend.steering.uses import Span, Uses, read_uses
from modelc.package import TensorInfo
from modelc.verify.draw import ANYWHERE, ENDS, NOTHING, Roles, draw_inputs

BATCH, HEADS, LENGTH, WIDTH = 2, 2, 8, 16
FLOAT, HALF, INT32, INT64, BOOL = (getattr(TensorProto, x) for x in ("FLOAT", "FLOAT16", "INT32", "INT64", "BOOL"))
Ways = Callable[["Attention"], str]


class Attention:
    """A model of one layer of attention that is being written: x [B, H, S, C] attends to itself where the mask says."""

    def __init__(self, name: str, shape: list, dtype: int, length: int | str = LENGTH) -> None:
        self.mask, self.inputs = name, {"x": [BATCH, HEADS, length, WIDTH], name: (shape, dtype)}
        self.nodes: list[onnx.NodeProto] = []
        self.weights: dict[str, np.ndarray] = {}

    def node(self, op: str, *inputs: str, **attrs: object) -> str:
        output = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [output], output, **attrs))
        return output

    def const(self, numbers: object, dtype: type = np.float32) -> str:
        name = f"c{len(self.weights)}"
        self.weights[name] = np.asarray(numbers, dtype)
        return name

    def scores(self) -> str:
        keys = self.node("Transpose", "x", perm=[0, 1, 3, 2])
        return self.node("Div", self.node("MatMul", "x", keys), self.const(WIDTH**0.5))

    def write(self, path: Path, scores: str) -> Path:
        """The file, where `scores` is what the softmax takes."""
        weights = self.node("Softmax", scores, axis=-1)
        self.nodes.append(helper.make_node("MatMul", [weights, "x"], ["y"], "y"))
        return small.save(path, self.nodes, self.inputs, {"y": self.inputs["x"]}, self.weights)


def exported(m: Attention) -> str:
    """(1 - mask) * -10000 of a mask [B, S], as BERT's exports have it."""
    wide = m.node("Unsqueeze", m.mask, m.const([1, 2], np.int64))
    inverted = m.node("Sub", m.const(1), m.node("Cast", wide, to=FLOAT))
    return m.node("Mul", inverted, m.const(-10000))


def filled(m: Attention) -> str:
    """The lowest number where the inverted mask is set, as masked_fill is exported; a causal mask is added before."""
    wide = m.node("Unsqueeze", m.mask, m.const([1, 2], np.int64))
    causal = m.const(np.triu(np.full((LENGTH, LENGTH), -1e9), 1))
    there = m.node("Equal", m.node("Add", m.node("Cast", wide, to=FLOAT), m.const(0)), m.const(0))
    return m.node("Where", there, m.const(np.finfo(np.float32).min), causal)


def added(m: Attention) -> str:
    return m.node("Identity", m.mask)


def added_wide(m: Attention) -> str:
    return m.node("Cast", m.mask, to=FLOAT)


def chosen(m: Attention) -> str:
    return m.node("Where", m.mask, m.const(0), m.const(-1e9))


def refused(m: Attention) -> str:
    return m.node("Where", m.mask, m.const(-1e9), m.const(0))


WIDE, EACH = [BATCH, LENGTH], [BATCH, 1, LENGTH, LENGTH]
MASKS: dict[str, tuple[str, list[int], int, Ways, Mask]] = {
    "whole numbers": ("attention_mask", WIDE, INT64, exported, BINARY_MASK),
    "narrow whole numbers": ("mask", WIDE, INT32, exported, BINARY_MASK),
    "with a causal one": ("attention_mask", WIDE, INT64, filled, BINARY_MASK),
    "real numbers, subtracted": ("mask", WIDE, FLOAT, exported, BINARY_MASK),
    "real numbers, added": ("attention_mask", EACH, FLOAT, added, ADDED_MASK),
    "real numbers of one row, added": ("mask", [LENGTH], FLOAT, added, ADDED_MASK),
    "half the width, added": ("mask", [BATCH, 1, 1, LENGTH], HALF, added_wide, ADDED_MASK),
    "bools": ("valid", [BATCH, 1, 1, LENGTH], BOOL, chosen, BINARY_MASK),
    "bools for each query": ("attn_mask", EACH, BOOL, chosen, BINARY_MASK),
    "bools for three dimensions": ("attn_mask", [HEADS, LENGTH, LENGTH], BOOL, chosen, BINARY_MASK),
    "inverted bools": ("key_padding", [BATCH, 1, 1, LENGTH], BOOL, refused, INVERTED_MASK),
}


def written(path: Path, what: str, ignored: bool = False) -> Path:
    """The model with this mask, or one that multiplies what comes of the mask by 0."""
    name, shape, dtype, way, _ = MASKS[what]
    m = Attention(name, shape, dtype)
    term = way(m)
    if ignored:
        term = m.node("Mul", term, m.const(0))
    return m.write(path, m.node("Add", m.scores(), term))


@pytest.mark.parametrize("what", MASKS)
def test_what_hides_is_told_by_use(tmp_path: Path, what: str) -> None:
    name, *_, mask = MASKS[what]
    assert masks(read_uses(written(tmp_path / "m.onnx", what))) == {name: mask}


def test_what_stands_in_the_place_of_scores_hides_them(tmp_path: Path) -> None:
    for k, (order, mask) in enumerate({(0, 1): BINARY_MASK, (1, 0): INVERTED_MASK}.items()):
        m = Attention("shown", EACH, BOOL)
        branches = (m.scores(), m.const(-np.inf))
        path = m.write(tmp_path / f"{k}.onnx", m.node("Where", "shown", *(branches[i] for i in order)))
        assert masks(read_uses(path)) == {"shown": mask}


def test_operators_of_attention_say_what_hides(tmp_path: Path) -> None:
    def model(op: str, inputs: str, shape: tuple[int, ...], dtype: str) -> Uses:
        feeds = {"x": np.zeros((2, 6, 8), np.float32), "mask": np.zeros(shape, dtype)}
        path = tmp_path / "m.onnx"
        onnx.save(model_of([ms(op, inputs, "y", num_heads=2)], feeds, {"": 17, "com.microsoft": 1}), path)
        return read_uses(path)

    assert masks(model("MultiHeadAttention", "x x x . mask", (2, 6), "int32")) == {"mask": BINARY_MASK}
    assert masks(model("MultiHeadAttention", "x x x . . mask", (2, 2, 6, 6), "float32")) == {"mask": ADDED_MASK}
    ends = model("Attention", "x w . mask", (2,), "int32")
    assert lengths(ends) == {"mask": (Dimension("x", 1), Dimension("x", 2))}
    assert lengths(model("Attention", "x w . mask", (2, 6), "int32")) == {}


def test_masks_that_say_nothing_are_looked_through(tmp_path: Path) -> None:
    """One that is added to itself, one that chooses between constants."""
    m = Attention("mask", WIDE, FLOAT)
    doubled = m.node("Add", m.node("Cast", m.node("Greater", "mask", m.const(0)), to=FLOAT), m.const(0))
    chosen_ones = m.node("Where", m.node("Cast", m.node("Add", doubled, doubled), to=BOOL), m.const(0), m.const(1))
    wide = m.node("Unsqueeze", m.node("Mul", chosen_ones, m.const(-1e9)), m.const([1, 2], np.int64))
    path = m.write(tmp_path / "m.onnx", m.node("Add", m.scores(), wide))
    assert masks(read_uses(path)) == {"mask": BINARY_MASK}


def test_a_bias_is_no_mask_and_other_masks_hide_no_scores(tmp_path: Path) -> None:
    biased = Attention("bias", EACH, FLOAT)
    path = biased.write(tmp_path / "biased.onnx", biased.node("Add", biased.scores(), "bias"))
    assert masks(read_uses(path)) == {}
    blended = Attention("mask", [BATCH, HEADS, LENGTH, WIDTH], FLOAT)
    path = blended.write(tmp_path / "blended.onnx", blended.node("MatMul", "x", blended.node("Mul", "x", "mask")))
    assert masks(read_uses(path)) == {}


# --- drawing ------------------------------------------------------------------------------------------------------


def drawn(tensor: TensorInfo, sample: int, mask: Mask | None = None, seed: int = 0) -> np.ndarray:
    roles = Roles(masks={} if mask is None else {tensor.name: mask})
    return draw_inputs([tensor], roles, seed, sample)[tensor.name]


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64", "int64", "int32", "int8", "bool"])
@pytest.mark.parametrize("shape", [(7,), (3, 7), (1, 7), (2, 3, 7), (2, 1, 5, 7), (4, 1, 1, 7), (30, 7)])
def test_masks_hide_the_ends_of_rows_then_nothing_then_positions_anywhere(dtype: str, shape: tuple[int, ...]) -> None:
    tensor = TensorInfo("mask", dtype, shape)
    for seed in range(20):
        ends, nothing, anywhere = (drawn(tensor, sample, seed=seed) for sample in (ENDS, NOTHING, ANYWHERE))
        assert {a.dtype.name for a in (ends, nothing, anywhere)} == {dtype} and ends.shape == anywhere.shape == shape
        assert set(np.unique(ends)) == {0, 1} and (nothing == 1).all()
        assert (anywhere[..., 0] == 1).all() and set(np.unique(anywhere)) <= {0, 1}
        counts = ends.astype(int).sum(-1).ravel()
        assert (np.sort(ends.astype(int), -1)[..., ::-1] == ends).all() and counts.min() >= 1
        assert len(set(counts.tolist())) == min(counts.size, 7)
        assert (drawn(tensor, 3, seed=seed) != nothing).any()


def test_what_is_hidden_is_what_the_model_takes_for_it() -> None:
    tensor = TensorInfo("m", "float32", (2, 1, 4, 9))
    assert set(np.unique(drawn(tensor, 0, ADDED_MASK))) == {-1e4, 0}
    assert (drawn(tensor, 1, ADDED_MASK) == 0).all()
    inverted = drawn(TensorInfo("m", "bool", (2, 9)), 0, INVERTED_MASK)
    assert not inverted[:, 0].any() and inverted[:, -1].any()


def test_conventions_hold_where_use_does_not_say() -> None:
    for name, dtype, shape, hidden in (
        ("attention_mask", "float32", (1, 1, 6, 6), -1e4),
        ("attention_mask", "float32", (1, 6), 0),
        ("image_mask", "float32", (1, 1, 6, 6), 0),
        ("padding_mask", "bool", (1, 6), 1),
        ("mask", "bool", (1, 6), 0),
    ):
        assert drawn(TensorInfo(name, dtype, shape), 0)[..., -1].min() == hidden or hidden == 1, name
    assert drawn(TensorInfo("padding_mask", "bool", (1, 6)), 0)[0, -1]


def test_small_masks_show_something() -> None:
    for sample in range(3):
        for shape in ((), (1,), (1, 1), (3, 1), (2, 5, 1)):
            mask = drawn(TensorInfo("mask", "int64", shape), sample)
            assert mask.size == mask.sum() or shape == (2, 5, 1)
        assert drawn(TensorInfo("mask", "int64", (2, 0)), sample).size == 0
        assert drawn(TensorInfo("mask", "bool", (1, 1)), sample).all()
    column = drawn(TensorInfo("mask", "float32", (2, 5, 1)), 0)[..., 0]
    assert (column[:, 0] == 1).all() and (column[:, -1] == 0).any()
    bits = drawn(TensorInfo("attention_mask", "bfloat16", (2, 1, 1, 6)), 0)
    assert bits.dtype == np.uint16 and set(np.unique(bits.astype(np.uint32) << 16).view(np.float32)) <= {0, -9984}


def test_positions_grow_within_their_table() -> None:
    tensors = [TensorInfo("position_ids", "int64", (3, 10)), TensorInfo("cache_position", "int32", (10,))]
    roles = Roles({"position_ids": [Span(None, -64, 63)]})
    for sample in range(6):
        for name, most in (("position_ids", 63), ("cache_position", 19)):
            positions = draw_inputs(tensors, roles, 0, sample)[name]
            assert (np.diff(positions, axis=-1) > 0).all() and positions.min() >= 0 and positions.max() <= most
            assert (positions == np.arange(10)).all() == (sample % 3 == NOTHING)
    crowded = draw_inputs(tensors[:1], Roles({"position_ids": [Span(None, 0, 4)]}), 0)["position_ids"]
    assert (np.diff(crowded, axis=-1) >= 0).all() and crowded.max() <= 4


def test_lengths_are_those_of_sequences(tmp_path: Path) -> None:
    inputs = {
        "audio": (["batch", 80, "time"], FLOAT),
        "audio_lengths": (["batch"], INT64),
        "length_scale": ([1], FLOAT),
        "seq_len": ([], INT32),
        "silence": ([3], INT64),
    }
    nodes = [
        helper.make_node("Mul", ["audio", "length_scale"], ["y"]),
        helper.make_node("Identity", ["audio_lengths"], ["a"]),
        helper.make_node("Identity", ["seq_len"], ["b"]),
        helper.make_node("Identity", ["silence"], ["c"]),
    ]
    path = small.save(tmp_path / "m.onnx", nodes, inputs, {"y": ["batch", 80, "time"]}, {})
    measured = lengths(read_uses(path))
    assert measured == {"audio_lengths": (Dimension("audio", 2),), "seq_len": (Dimension("audio", 2),)}
    tensors = [
        TensorInfo("audio", "float32", (4, 80, 200)),
        TensorInfo("audio_lengths", "int64", (4,)),
        TensorInfo("seq_len", "int32", ()),
    ]
    for sample in range(6):
        feed = draw_inputs(tensors, Roles(lengths=measured), 0, sample)
        counts = np.array([*feed["audio_lengths"], feed["seq_len"]])
        assert counts.min() >= 1 and counts.max() <= 200
        assert (counts == 200).all() == (sample % 3 == NOTHING)
        assert sample % 3 != ENDS or len(set(feed["audio_lengths"].tolist())) == 4


# --- packages -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", MASKS)
@pytest.mark.sweep(2)
def test_a_package_that_ignores_the_mask_is_refused(tmp_path: Path, what: str) -> None:
    right, wrong = written(tmp_path / "right.onnx", what), written(tmp_path / "wrong.onnx", what, ignored=True)
    modelc.compile(wrong, output=tmp_path / "wrong.modelc")
    assert modelc.verify(tmp_path / "wrong.modelc", wrong).passed
    for samples in (1, 2):
        assert not modelc.verify(tmp_path / "wrong.modelc", right, samples=samples).passed


def test_a_package_that_hides_what_nothing_hides_is_refused(tmp_path: Path) -> None:
    """A package for which every row is as long as half of the sequence: the second sample shows that it is wrong, were
    the first one to miss it."""
    right = written(tmp_path / "right.onnx", "whole numbers")
    m = Attention("attention_mask", WIDE, INT64)
    halved = m.node("Mul", m.mask, m.const(np.arange(LENGTH) < LENGTH // 2, np.int64))
    m.mask = halved
    wrong = m.write(tmp_path / "wrong.onnx", m.node("Add", m.scores(), exported(m)))
    modelc.compile(wrong, output=tmp_path / "wrong.modelc")
    assert not modelc.verify(tmp_path / "wrong.modelc", right).passed
