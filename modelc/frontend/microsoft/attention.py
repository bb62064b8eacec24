"""Attention and what stands around it in ONNX Runtime's transformer models (domain com.microsoft) in ONNX's own words.

B batch, N heads, S queries, P keys that are kept from before, T keys in all, H the size of a head.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from modelc.frontend.building.build import Builder, OnnxNode
from modelc.frontend.building.formula import Formula
from modelc.frontend.operators.form import Fused

LOWEST = float(np.finfo(np.float32).min)  # what is added to the score of a key that comes later
FILTER = -10000.0  # what is added to that of a masked key, unless mask_filter_value says otherwise


# --- heads and scores -------------------------------------------------------------------------------------------------


def _heads(f: Formula, x: str, count: int) -> str:
    """[B, S, N * H] as [B, N, S, H]."""
    batch, length, width = f.shape(x)
    if count < 1 or width % count:
        raise f.n.fail(f"expected {width} numbers to be a multiple of its {count} heads")
    return f.transposed(f.reshaped(x, batch, length, count, width // count), 0, 2, 1, 3)


def _joined(f: Formula, x: str, output: str) -> None:
    """`output`: [B, N, S, H] as [B, S, N * H]."""
    batch, count, length, size = f.shape(x)
    f.b.reshape(f.n, f.transposed(x, 0, 2, 1, 3), (batch, length, count * size), output)


def _times(f: Formula, x: str, number: float) -> str:
    return f("Mul", x, f.constant(number, f.dtype(x)))


def _attended(f: Formula, q: str, k: str, v: str, added: Sequence[str], scale: float, cap: float = 0.0) -> str:
    """softmax(q k^T * scale + what is added) v, of [B, N, S, H]."""
    size = f.shape(q)[-1]
    scores = f("MatMul", q, f.transposed(k, 0, 1, 3, 2))
    scores = _times(f, scores, scale or 1 / np.sqrt(size))
    if cap:
        scores = _times(f, f("Tanh", _times(f, scores, 1 / cap)), cap)
    for bias in added:
        scores = f("Add", scores, bias)
    return f("MatMul", f("Softmax", scores, axis=-1), v)


def _where(f: Formula, there: str, like: str, otherwise: float) -> str:
    """0 where there is something to attend to."""
    dtype = f.dtype(like)
    return f("Where", there, f.constant(0, dtype), f.constant(max(otherwise, _least(dtype)), dtype))


def _least(dtype: str) -> float:
    return LOWEST if dtype == "float32" else -65504.0


def _masked(f: Formula, mask: str, like: str, batch: int, queries: int, keys: int) -> list[str]:
    """What a mask of any kind adds to the scores: the ends of the keys [B], ends and starts [2 B], or 1 for each key
    that counts, [B, T] or [B, S, T]. One column for several keys says nothing."""
    if not mask:
        return []
    shape = f.shape(mask)
    at = f.constant(np.arange(keys), "int32")
    if shape in ((batch,), (2 * batch,)):
        ends = f.reshaped(f.part(mask, 0, 0, batch), batch, 1, 1, 1)
        there = f("Less", at, ends)
        if len(shape) == 1 and shape[0] == 2 * batch:
            starts = f.reshaped(f.part(mask, 0, batch, 2 * batch), batch, 1, 1, 1)
            there = f("And", there, f("GreaterOrEqual", at, starts))
    elif len(shape) == 2 and shape[1] == 1 and keys > 1:
        return []
    elif shape in ((batch, keys), (batch, queries, keys)):
        wide = f.reshaped(mask, batch, 1, shape[1] if len(shape) == 3 else 1, keys)
        there = f("Greater", wide, f.constant(0, f.dtype(mask)))
    else:
        raise f.n.fail(
            f"expected a mask of [{batch}], [{2 * batch}], [{batch}, {keys}] or [{batch}, {queries}, {keys}], "
            f"found {list(shape)}"
        )
    return [_where(f, there, like, float(f.n.attrs.get("mask_filter_value", FILTER)))]


def _causal(f: Formula, like: str, queries: int, keys: int) -> list[str]:
    """Each query attends to what is not after it; the last query is at the last key."""
    if not f.n.attrs.get("unidirectional", 0) or queries == 1:
        return []
    later = np.triu(np.ones((queries, keys), bool), keys - queries + 1)
    return [f.constant(np.where(later, _least(f.dtype(like)), 0), f.dtype(like))]


def _refused(n: OnnxNode, inputs: Sequence[int] = (), attrs: Sequence[str] = (), outputs: Sequence[int] = ()) -> None:
    """Raises ModelError where anything is used that is not compiled."""
    if unwanted := [k for k in inputs if n.input(k)]:
        raise n.fail(f"modelc does not take its input {unwanted[0]}; leave it out when exporting")
    if named := [name for name in attrs if n.attrs.get(name, 0)]:
        raise n.fail(f"expected {named[0]}=0, found {n.attrs[named[0]]}")
    if wanted := [k for k in outputs if n.wants(k)]:
        raise n.fail(f"expected its output {wanted[0]} to be unused")


# --- Attention --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Projected:
    """Queries, keys and values of Attention [B, S, .], and the positions of its other inputs."""

    q: str
    k: str
    v: str
    mask: int
    past: int
    bias: int


def _thirds(f: Formula, x: str, sizes: Sequence[int]) -> list[str]:
    """What is projected at once, apart along the last dimension."""
    bounds, axis = np.cumsum([0, *sizes]).tolist(), len(f.shape(x)) - 1
    return [f.part(x, axis, a, c) for a, c in pairwise(bounds)]


def _attention(b: Builder, n: OnnxNode) -> None:
    """Of queries, keys and values projected at once."""
    f = Formula(b, n)
    _refused(n, (6,), ("do_rotary", "past_present_share_buffer"))
    width = b.shape(n.inputs[1])[-1]
    sizes = tuple(n.attrs.get("qkv_hidden_sizes") or (width // 3,) * 3)
    if len(sizes) != 3 or sum(sizes) != width:
        raise n.fail(f"expected weights of {sum(sizes)} columns for sizes {list(sizes)}, found {width}")
    whole = f("MatMul", n.inputs[0], n.inputs[1])
    whole = f("Add", whole, n.inputs[2]) if n.input(2) else whole
    q, k, v = _thirds(f, whole, sizes)
    _self_attention(f, Projected(q, k, v, 3, 4, 5))


def _qattention(b: Builder, n: OnnxNode) -> None:
    """The same, projected as whole numbers."""
    f = Formula(b, n)
    _refused(n, (), ("do_rotary", "past_present_share_buffer"))
    width = b.shape(n.inputs[1])[-1]
    zero = f.scalar(6, "zero point") if n.input(6) else ""
    columns = f.reshaped(n.inputs[7]) if n.input(7) and b.shape(n.inputs[7]) == (1,) else n.input(7)
    total = f.cast(f("MatMulInteger", n.inputs[0], n.inputs[1], zero, columns), "float32")
    whole = f("Mul", total, f("Mul", f.scalar(3, "scale"), n.inputs[4]))
    whole = f("Add", whole, n.inputs[2]) if n.input(2) else whole
    q, k, v = _thirds(f, whole, (width // 3,) * 3)
    _self_attention(f, Projected(q, k, v, 5, 8, 9))


def _self_attention(f: Formula, given: Projected) -> None:
    n, count = f.n, int(f.n.attrs["num_heads"])
    q, k, v = (_heads(f, x, count) for x in (given.q, given.k, given.v))
    if past := n.input(given.past):
        old = [f.reshaped(f.part(past, 0, j, j + 1), *f.shape(past)[1:]) for j in (0, 1)]
        k, v = (f("Concat", x, y, axis=2) for x, y in zip(old, (k, v), strict=True))
    batch, _, queries, _ = f.shape(q)
    keys = f.shape(k)[2]
    added = _masked(f, n.input(given.mask), q, batch, queries, keys) + _causal(f, q, queries, keys)
    added += [n.input(given.bias)] if n.input(given.bias) else []
    _joined(f, _attended(f, q, k, v, added, float(n.attrs.get("scale", 0.0))), n.outputs[0])
    if n.wants(1):
        f("Concat", *(f.reshaped(x, 1, *f.shape(x)) for x in (k, v)), axis=0, outputs=n.outputs[1:2])


def _multi_head_attention(b: Builder, n: OnnxNode) -> None:
    f, count = Formula(b, n), int(n.attrs["num_heads"])
    _refused(n, (8, 9), (), (3,))
    if len(b.shape(n.inputs[0])) != 3 or not n.input(1) or not n.input(2):
        raise n.fail("expected queries, keys and values apart, found them packed in one input")
    parts = list(n.inputs[:3])
    if n.input(3):
        sizes = [b.shape(x)[-1] for x in parts]
        apart = len(b.shape(parts[1])) == 4
        sizes = [sizes[0], *(d * count for d in sizes[1:])] if apart else sizes
        biases = _thirds(f, n.inputs[3], sizes)
        parts = [x if len(b.shape(x)) == 4 else f("Add", x, y) for x, y in zip(parts, biases, strict=True)]
    q, k, v = (x if len(b.shape(x)) == 4 else _heads(f, x, count) for x in parts)
    if n.input(6) and n.input(7):
        k, v = (f("Concat", old, new, axis=2) for old, new in ((n.inputs[6], k), (n.inputs[7], v)))
    batch, _, queries, _ = f.shape(q)
    keys = f.shape(k)[2]
    added = _masked(f, n.input(4), q, batch, queries, keys) + _causal(f, q, queries, keys)
    added += [n.input(5)] if n.input(5) else []
    _joined(f, _attended(f, q, k, v, added, float(n.attrs.get("scale", 0.0))), n.outputs[0])
    for at, x in ((1, k), (2, v)):
        if n.wants(at):
            f.hand(at, x)


# --- rotary positions -------------------------------------------------------------------------------------------------


def _rotated(f: Formula, x: str, cos: str, sin: str, interleaved: bool) -> str:
    """[B, N, S, H], of which the first 2 R numbers are turned in pairs by angles [., 1, S, R]."""
    *outer, size = f.shape(x)
    half = f.shape(cos)[-1]
    turned = f.part(x, 3, 0, 2 * half) if 2 * half < size else x
    if interleaved:
        pairs = f.reshaped(turned, *outer, half, 2)
        real, imaginary = (f.reshaped(f.part(pairs, 4, j, j + 1), *outer, half) for j in (0, 1))
    else:
        real, imaginary = f.part(turned, 3, 0, half), f.part(turned, 3, half, 2 * half)
    first = f("Sub", f("Mul", real, cos), f("Mul", imaginary, sin))
    second = f("Add", f("Mul", real, sin), f("Mul", imaginary, cos))
    if interleaved:
        both = [f.reshaped(y, *outer, half, 1) for y in (first, second)]
        whole = f.reshaped(f("Concat", *both, axis=4), *outer, 2 * half)
    else:
        whole = f("Concat", first, second, axis=3)
    return f("Concat", whole, f.part(x, 3, 2 * half, size), axis=3) if 2 * half < size else whole


def _angles(f: Formula, table: str, positions: str, half: int) -> str:
    """What a table [positions, R] says for positions [B or 1, S]: [B or 1, 1, S, R]."""
    at, most = f.b.data(positions), f.shape(table)[0] - 1
    if at is not None and at.size and at.max() > most:
        raise f.n.fail(f"expected places up to {most}, for {table!r} has no others; found {at.max()}")
    rows = f("Gather", table if f.shape(table)[1] == half else f.part(table, 1, 0, half), positions, axis=0)
    batch, length, _ = f.shape(rows)
    return f.reshaped(rows, batch, 1, length, half)


def _rotary_embedding(b: Builder, n: OnnxNode) -> None:
    f = Formula(b, n)
    _refused(n, (), ("is_packed_batching",))
    x, positions, half = n.inputs[0], n.inputs[1], b.shape(n.inputs[2])[1]
    flat = len(b.shape(x)) == 3
    if flat:
        x = _heads(f, x, int(n.attrs.get("num_heads", 0)) or b.shape(x)[2] // (2 * half))
    if b.shape(positions) == (1,):
        steps = f.constant(np.arange(b.shape(x)[2])[None], "int64")
        positions = f("Add", steps, positions)
    cos, sin = (_angles(f, table, positions, half) for table in n.inputs[2:4])
    if n.attrs.get("scale", 1.0) != 1.0:
        raise n.fail("expected scale=1, for ONNX Runtime documents another one and does not multiply by it")
    turned = _rotated(f, x, cos, sin, bool(n.attrs.get("interleaved", 0)))
    if flat:
        _joined(f, turned, n.outputs[0])
    else:
        f.hand(0, turned)


# --- GroupQueryAttention ----------------------------------------------------------------------------------------------


def _group_query_attention(b: Builder, n: OnnxNode) -> None:
    """Queries of several heads share the keys of one; keys are kept in a buffer [B, N, T, H] behind those from before,
    whose number is `seqlens_k` + 1 less those that are new. A cache that grows is Concat(past, new), where all tokens
    count."""
    f = Formula(b, n)
    _refused(n, range(11, 16), ("smooth_softmax", "qk_output", "kv_cache_bit_width", "sliding_window_cache"), (3,))
    if not n.attrs.get("causal", 1):
        raise n.fail("expected causal attention, found causal=0")
    count, shared = int(n.attrs["num_heads"]), int(n.attrs["kv_num_heads"])
    if count < 1 or shared < 1 or count % shared:
        raise n.fail(f"expected num_heads to be a multiple of kv_num_heads, found {count} and {shared}")
    q, k, v = _queries_keys_values(f, count, shared)
    batch, _, new, _ = f.shape(q)
    total_length = b.steering(n, 6, "total_sequence_length")
    old = b.shape(n.inputs[3])[2] if n.input(3) else 0
    total = int(np.asarray(total_length).reshape(-1)[0])
    kept = max(total, old)
    lengths = f.reshaped(f.cast(n.inputs[5], "int64"), batch, 1)
    grows = n.input(3) in b.growing
    if grows and (batch != 1 or old + new != total):
        raise n.fail(
            f"expected a cache that grows to be of one sequence, and total_sequence_length to be the {old} tokens in "
            f"it and the {new} new ones, found {batch} sequences and {total}"
        )
    if grows:
        before = ""
    elif new == total:
        before = f.constant(np.zeros((batch, 1)), "int64")
    else:
        before = f("Add", lengths, f.constant([[1 - new]], "int64"))  # [B, 1]
    places = f.constant(np.arange(new)[None] + old * grows, "int64")
    at = f("Add", before, places) if before else places  # [B, S]
    if n.attrs.get("do_rotary", 0):
        positions = n.input(9) or at
        cos, sin = (_angles(f, table, positions, b.shape(table)[1]) for table in n.inputs[7:9])
        turn = bool(n.attrs.get("rotary_interleaved", 0))
        q, k = (_rotated(f, x, cos, sin, turn) for x in (q, k))
    if before:
        keys, values = (_kept(f, n.input(j), x, before, kept) for j, x in ((3, k), (4, v)))
    else:
        at = _of_all_tokens(f, at, lengths)
        keys, values = (f("Concat", past, x, axis=2) for past, x in zip(n.inputs[3:5], (k, v), strict=True))
    place = f.constant(np.arange(kept), "int64")
    here = f.reshaped(at, batch, 1, new, 1)
    there = f("LessOrEqual", place, here)
    window = int(n.attrs.get("local_window_size", -1))
    if window > 0:
        there = f("And", there, f("Greater", place, f("Sub", here, f.constant(window, "int64"))))
    added = [_where(f, there, q, LOWEST)]
    if n.input(10):
        bias = n.inputs[10]
        more = kept - b.shape(bias)[3]
        pads = f.constant([0] * 7 + [more], "int64")
        added.append(f("Pad", bias, pads, mode="constant") if more else bias)
    cap, scale = float(n.attrs.get("softcap", 0.0)), float(n.attrs.get("scale", 0.0))
    wide = [_repeated(f, x, count // shared) for x in (keys, values)]
    _joined(f, _attended(f, q, wide[0], wide[1], added, scale, cap), n.outputs[0])
    for out, x in ((1, keys), (2, values)):
        if n.wants(out):
            f.hand(out, x)


def _queries_keys_values(f: Formula, count: int, shared: int) -> list[str]:
    """By head; queries, keys and values may be in one input."""
    n = f.n
    parts = list(n.inputs[:3])
    if not n.input(1):
        width = f.shape(parts[0])[-1] // (count + 2 * shared)
        parts = _thirds(f, parts[0], (count * width, shared * width, shared * width))
    return [_heads(f, x, heads) for x, heads in zip(parts, (count, shared, shared), strict=True)]


def _of_all_tokens(f: Formula, at: str, lengths: str) -> str:
    """The places of what is new [1, S], the last of which a run checks to be `lengths`: no token is masked."""
    last = f("ReduceMax", at, f.constant([1], "int64"), keepdims=1)
    masked = f("Sub", last, lengths, outputs=(f.b.fresh(f"{f.n.input(5)}/masked_tokens"),))
    return f("Add", at, f("Bound", masked, most=0))


def _kept(f: Formula, past: str, new: str, before: str, kept: int) -> str:
    """The buffer [B, N, kept, H]: what was there, with what is new from row `before` [B, 1] of it on."""
    batch, heads, length, size = f.shape(new)
    old = f.shape(past)[2] if past else 0
    if length == kept:
        return new
    place = f("Sub", f.constant(np.arange(kept)[None], "int64"), before)  # [B, kept]: rows of what is new
    if length > 1:
        row = f("Clip", place, f.constant(0, "int64"), f.constant(length - 1, "int64"))
        shape = f.constant((batch, heads, kept, size), "int64")
        new = f("GatherElements", new, f("Expand", f.reshaped(row, batch, 1, kept, 1), shape), axis=2)
    zero = f.constant(0, "int64")
    first = f.reshaped(f("GreaterOrEqual", place, zero), batch, 1, kept, 1)
    last = f.reshaped(f("Less", place, f.constant(length, "int64")), batch, 1, kept, 1)
    none = f.constant(0, f.dtype(new))
    behind = f("Where", last, new, none)
    if not old:
        return f("Where", first, behind, none)
    more = f.constant([0] * 6 + [kept - old, 0], "int64")
    return f("Where", first, behind, f("Pad", past, more, mode="constant") if kept > old else past)


def _repeated(f: Formula, x: str, times: int) -> str:
    """Every head so many times."""
    if times == 1:
        return x
    batch, heads, length, size = f.shape(x)
    shape = f.constant((batch, heads, times, length, size), "int64")
    wide = f("Expand", f.reshaped(x, batch, heads, 1, length, size), shape)
    return f.reshaped(wide, batch, heads * times, length, size)


# --- embeddings -------------------------------------------------------------------------------------------------------


def _embed_layer_normalization(b: Builder, n: OnnxNode) -> None:
    f = Formula(b, n)

    def looked_up(k: int, index: str) -> str:
        return f("Gather", n.inputs[k], index, axis=0)

    _embedded(f, looked_up, (n.inputs[5], n.inputs[6]), n.input(7), n.input(8), (1, 2))


def _qembed_layer_normalization(b: Builder, n: OnnxNode) -> None:
    """Tables of bytes, dequantized where they were looked up."""
    f = Formula(b, n)

    def looked_up(k: int, index: str) -> str:
        row = f("Gather", n.inputs[k], index, axis=0)
        return f("DequantizeLinear", row, f.scalar(k + 6, "scale"), f.scalar(k + 11, "zero point"))

    def dequantized(k: int) -> str:
        return f("DequantizeLinear", n.inputs[k], f.scalar(k + 6, "scale"), f.scalar(k + 11, "zero point"))

    _embedded(f, looked_up, (dequantized(5), dequantized(6)), n.input(7), "", (1, 3))


def _embedded(
    f: Formula,
    looked_up: Callable[[int, str], str],
    normal: tuple[str, str],
    mask: str,
    positions: str,
    outputs: tuple[int, int],
) -> None:
    """What tables 2, 3 and 4 say of words, positions and segments, added up and normalised; `outputs` are the
    positions of how many each mask has, and of the sum."""
    n = f.n
    batch, length = f.shape(n.inputs[0])
    total = looked_up(2, n.inputs[0])
    at = positions or f.constant(np.arange(length)[None], "int64")
    total = f("Add", total, looked_up(3, at))
    if n.input(1):
        total = f("Add", total, looked_up(4, n.inputs[1]))
    f("LayerNormalization", total, *normal, axis=-1, epsilon=n.attrs.get("epsilon", 1e-12), outputs=n.outputs[:1])
    counted, summed = outputs
    if n.wants(counted):
        if mask:
            attended = f.cast(f("Equal", mask, f.constant(1, "int32")), "int32")
            axes = f.constant([1], "int64")
            f("ReduceSum", attended, axes, keepdims=0, outputs=(n.outputs[counted],))
        else:
            f.hand(counted, f.constant(np.zeros(batch), "int32"))
    if n.wants(summed):
        f.hand(summed, total)


_HEADS = "num_heads:INT! scale:FLOAT mask_filter_value:FLOAT unidirectional:INT"
_KEPT = "past_present_share_buffer:INT do_rotary:INT"
ATTENTION = (
    Fused(
        "Attention",
        _attention,
        "input weights bias? mask_index? past? attention_bias? past_sequence_length?",
        2,
        f"{_HEADS} {_KEPT} qkv_hidden_sizes:INTS rotary_embedding_dim:INT",
    ),
    Fused(
        "QAttention",
        _qattention,
        "input weight bias input_scale weight_scale mask_index? input_zero_point? weight_zero_point? past?",
        2,
        f"{_HEADS} {_KEPT}",
    ),
    Fused(
        "MultiHeadAttention",
        _multi_head_attention,
        "query key? value? bias? key_padding_mask? attention_bias? past_key? past_value? past_sequence_length? "
        "cache_indirection?",
        4,
        _HEADS,
    ),
    Fused(
        "GroupQueryAttention",
        _group_query_attention,
        "query key? value? past_key? past_value? seqlens_k total_sequence_length cos_cache? sin_cache? position_ids? "
        "attention_bias? head_sink? k_scale? v_scale? q_norm_weight? k_norm_weight?",
        4,
        "num_heads:INT! kv_num_heads:INT! scale:FLOAT softcap:FLOAT local_window_size:INT do_rotary:INT causal:INT "
        "rotary_interleaved:INT smooth_softmax:INT qk_output:INT qk_norm_epsilon:FLOAT kv_cache_bit_width:INT "
        "sliding_window_cache:INT k_quant_type:STRING v_quant_type:STRING",
    ),
    Fused(
        "RotaryEmbedding",
        _rotary_embedding,
        "input position_ids cos_cache sin_cache",
        attributes="num_heads:INT rotary_embedding_dim:INT interleaved:INT is_packed_batching:INT scale:FLOAT",
    ),
    Fused(
        "EmbedLayerNormalization",
        _embed_layer_normalization,
        "input_ids segment_ids? word_embedding position_embedding segment_embedding? gamma beta mask? position_ids?",
        3,
        "epsilon:FLOAT mask_index_type:INT",
    ),
    Fused(
        "QEmbedLayerNormalization",
        _qembed_layer_normalization,
        "input_ids segment_ids? word_embedding_quant position_embedding_quant segment_embedding? gamma_quant "
        "beta_quant mask? word_embedding_scale position_embedding_scale segment_embedding_scale? gamma_scale "
        "beta_scale word_embedding_zero_point position_embedding_zero_point segment_embedding_zero_point? "
        "gamma_zero_point beta_zero_point",
        2,
        "epsilon:FLOAT",
    ),
)
