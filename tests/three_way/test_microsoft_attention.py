"""Attention and embeddings of ONNX Runtime's own domain mean what they mean there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from microsoft_models import ms, three_ways, two_ways, write

from modelc.errors import ModelError
from modelc.frontend.onnx import import_model

F = np.float32
RNG = np.random.default_rng(0)


def real(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(F)


def byte(*shape: int) -> np.ndarray:
    return RNG.integers(0, 256, shape).astype(np.uint8)


def whole(data: object) -> np.ndarray:
    return np.array(data, np.int32)


@dataclass(frozen=True)
class Case:
    """One node: operator, inputs, outputs and attributes; what it is fed and what is constant."""

    op: str
    inputs: str
    feeds: dict[str, np.ndarray]
    known: dict[str, object]
    outputs: str = "y"
    attrs: dict[str, object] = field(default_factory=dict)

    def written(self, path: Path) -> Path:
        node = ms(self.op, self.inputs, self.outputs, **self.attrs)
        return write(path, [node], self.feeds, self.known, self.outputs)


X = real(2, 5, 16)
PROJECTION = {"W": real(16, 48) * F(0.3), "B": real(48) * F(0.3)}
FOUR = {"num_heads": 4}
MASKS = {
    "ends": whole([3, 5]),
    "ends and starts": whole([4, 5, 1, 2]),
    "keys": whole([[1, 1, 0, 1, 0], [1] * 5]),
    "queries and keys": RNG.integers(0, 2, (2, 5, 5)).astype(np.int32),
    "nothing": whole([[1], [1]]),
}


def attention(inputs: str, outputs: str = "y", known: dict[str, object] = PROJECTION, **more: object) -> Case:
    feeds = {k: v for k, v in more.items() if isinstance(v, np.ndarray)}
    attrs = {k: v for k, v in more.items() if k not in feeds}
    return Case("Attention", f"x W B {inputs}", {"x": X, **feeds}, known, outputs, FOUR | attrs)


def several(inputs: str, outputs: str = "y", **more: object) -> Case:
    feeds = {k: v for k, v in more.items() if isinstance(v, np.ndarray)}
    attrs = {k: v for k, v in more.items() if k not in feeds}
    known = {"B": PROJECTION["B"]} if "B" in inputs.split() else {}
    return Case("MultiHeadAttention", f"q k v {inputs}", {"q": X, **feeds}, known, outputs, FOUR | attrs)


def quantized(weights: np.ndarray, scale: np.ndarray, zero: np.ndarray, inputs: str, **feeds: np.ndarray) -> Case:
    known = {"W": weights, "B": PROJECTION["B"], "s": F(0.02), "sw": scale, "z": np.uint8(120), "zw": zero}
    fed = {"x": byte(2, 5, 16), **feeds}
    return Case("QAttention", inputs, fed, known, "y p", {**FOUR, "unidirectional": int("past" in feeds)})


SIGNED = RNG.integers(-63, 64, (16, 48)).astype(np.int8)
COS_SIN = {"c": real(20, 2), "s": real(20, 2)}
PLACES = np.array([[0, 1, 2, 3, 4], [7, 8, 9, 10, 11]])


def rotary(x: np.ndarray, at: np.ndarray, **attrs: object) -> Case:
    return Case("RotaryEmbedding", "x p c s", {"x": x, "p": at}, COS_SIN, "y", attrs)


IDS, SEGMENTS = RNG.integers(0, 20, (2, 6)).astype(np.int32), RNG.integers(0, 2, (2, 6)).astype(np.int32)
NORMAL = {"ga": real(8), "be": real(8)}
TABLES = {"w": real(20, 8), "p": real(10, 8), **NORMAL}
BYTES = {"w": byte(20, 8), "p": byte(10, 8), "s": byte(2, 8), "ga": byte(8), "be": byte(8)}
BYTES |= {f"{k}s": F(v) for k, v in zip("wpsgb", (0.02, 0.01, 0.03, 0.01, 0.02), strict=True)}
BYTES |= {f"{k}z": np.uint8(v) for k, v in zip("wpsgb", (100, 99, 130, 3, 120), strict=True)}
COUNTED = whole([[1, 1, 1, 0, 0, 0], [1] * 6])


def grouped(new: int, old: int, total: int, lengths: list[int], more: str = "", packed: bool = False, **attrs) -> Case:
    """Four heads of queries for two of keys; `lengths` are those of the sequences less 1."""
    batch, size = len(lengths), 16
    feeds = {"q": real(batch, new, (8 if packed else 4) * size), "l": whole(lengths)}
    if not packed:
        feeds |= {"k": real(batch, new, 2 * size), "v": real(batch, new, 2 * size)}
    if old:
        feeds |= {"pk": real(batch, 2, old, size), "pv": real(batch, 2, old, size)}
    if "bias" in more:
        feeds["bias"] = real(1, 1, new, total)
    known = {"t": whole(total), "c": real(40, size // 2), "s": real(40, size // 2)}
    inputs = f"q {'. .' if packed else 'k v'} {'pk pv' if old else '. .'} l t {more}"
    return Case("GroupQueryAttention", inputs, feeds, known, "y a b", {"num_heads": 4, "kv_num_heads": 2, **attrs})


CASES: dict[str, Callable[[], Case]] = {
    **{f"mask of {k}": lambda m=m: attention("m", m=m) for k, m in MASKS.items()},
    **{
        f"causal, mask of {k}": lambda m=m: attention("m", m=m, unidirectional=1, mask_filter_value=-500.0)
        for k, m in MASKS.items()
    },
    "keys from before": lambda: attention(
        "m past", "y p", m=whole([[1, 1, 0, 1, 1, 1, 1, 1], [1] * 8]), past=real(2, 2, 4, 3, 4), unidirectional=1
    ),
    "a bias": lambda: attention(". . a", a=real(1, 4, 5, 5), scale=0.3),
    "other sizes": lambda: attention("", known={"W": real(16, 40), "B": real(40)}, qkv_hidden_sizes=[16, 16, 8]),
    "several inputs": lambda: several("", k=real(2, 7, 16), v=real(2, 7, 16)),
    "a bias and a mask of keys": lambda: several(
        "B m a", k=real(2, 7, 16), v=real(2, 7, 16), m=whole([[1, 1, 1, 0, 1, 1, 0], [1] * 7]), a=real(2, 1, 5, 7)
    ),
    "keys from before apart": lambda: several(
        "B . . pk pv", "y a b", k=real(2, 5, 16), v=real(2, 5, 16), pk=real(2, 4, 3, 4), pv=real(2, 4, 3, 4),
        unidirectional=1,
    ),
    "keys by head": lambda: several("B", k=real(2, 4, 7, 4), v=real(2, 4, 7, 4)),
    "ends of keys": lambda: several(". m", k=real(2, 7, 16), v=real(2, 7, 16), m=whole([3, 7])),
    "bytes": lambda: quantized(SIGNED, F(0.01), np.int8(3), "x W B s sw m z zw", m=whole([3, 5])),
    "bytes by column": lambda: quantized(
        byte(16, 48), RNG.uniform(0.005, 0.01, 48).astype(F), RNG.integers(0, 9, 48).astype(np.uint8),
        "x W B s sw . z zw past", past=real(2, 2, 4, 3, 4),
    ),
    "rotary": lambda: rotary(X, PLACES, num_heads=4),
    "rotary from a place, in pairs": lambda: rotary(X, np.array([3]), interleaved=1),
    "rotary by head": lambda: rotary(real(2, 4, 5, 4), PLACES),
    "rotary in part": lambda: rotary(X, PLACES, num_heads=2, rotary_embedding_dim=4),
    "rotary in part, in pairs": lambda: rotary(X, PLACES, num_heads=2, rotary_embedding_dim=4, interleaved=1),
    "embeddings": lambda: Case(
        "EmbedLayerNormalization", "i g w p s ga be m", {"i": IDS, "g": SEGMENTS, "m": COUNTED},
        {**TABLES, "s": real(2, 8)}, "y counts sum", {"epsilon": 1e-5},
    ),
    "embeddings at places": lambda: Case(
        "EmbedLayerNormalization", "i . w p . ga be . at",
        {"i": IDS, "at": RNG.integers(0, 10, (2, 6)).astype(np.int32)}, TABLES, "y counts",
    ),
    "embeddings in bytes": lambda: Case(
        "QEmbedLayerNormalization", "i g w p s ga be m ws ps ss gs bs wz pz sz gz bz",
        {"i": IDS, "g": SEGMENTS, "m": COUNTED}, BYTES, "y counts", {"epsilon": 1e-5},
    ),
    "grouped, a prompt": lambda: grouped(5, 0, 5, [4, 4]),
    "grouped, a prompt and a buffer": lambda: grouped(5, 9, 5, [4, 4]),
    "grouped, one more": lambda: grouped(1, 6, 7, [6, 6]),
    "grouped, one more, ragged": lambda: grouped(1, 6, 7, [6, 3]),
    "grouped, one more in a buffer": lambda: grouped(1, 12, 7, [6, 4]),
    "grouped, several more": lambda: grouped(3, 6, 9, [7]),
    "grouped and rotary": lambda: grouped(1, 6, 7, [6, 3], "c s", do_rotary=1),
    "grouped and rotary, a prompt in pairs": lambda: grouped(5, 0, 5, [4, 4], "c s", do_rotary=1, rotary_interleaved=1),
    "grouped, a window": lambda: grouped(
        3, 6, 9, [8], "c s", do_rotary=1, local_window_size=4, softcap=5.0, scale=0.2
    ),
    "grouped, packed": lambda: grouped(1, 6, 7, [6, 6], "c s", packed=True, do_rotary=1),
    "grouped, a bias": lambda: grouped(3, 6, 9, [8], ". . . bias"),
}  # fmt: skip


@pytest.mark.parametrize("what", CASES)
def test_one_operator(tmp_path: Path, what: str) -> None:
    case = CASES[what]()
    two_ways(case.written(tmp_path / "m.onnx"), case.feeds)


def test_as_a_package(tmp_path: Path) -> None:
    """One operator of each kind, all in one model, with its inputs at run time."""
    names = (
        "causal, mask of keys", "a bias and a mask of keys", "bytes", "embeddings in bytes", "grouped, a window",
    )  # fmt: skip
    nodes, feeds, known, outputs = [], {}, {}, []
    for k, name in enumerate(names):
        case = CASES[name]()
        inputs = " ".join(x if x == "." else f"{x}{k}" for x in case.inputs.split())
        results = [f"{x}{k}" for x in case.outputs.split()]
        nodes.append(ms(case.op, inputs, " ".join(results), **case.attrs))
        feeds |= {f"{x}{k}": v for x, v in case.feeds.items()}
        known |= {f"{x}{k}": v for x, v in case.known.items()}
        outputs += results
    three_ways(write(tmp_path / "m.onnx", nodes, feeds, known, " ".join(outputs)), feeds, verify=True)


def test_what_is_not_compiled_is_said(tmp_path: Path) -> None:
    rotated = rotary(X, PLACES, num_heads=4, scale=0.5)
    packed = Case("MultiHeadAttention", "q", {"q": real(2, 5, 4, 3, 4)}, {}, "y", FOUR)
    heads = Case("Attention", "x W B", {"x": X}, PROJECTION, "y", {"num_heads": 5})
    strange = attention("m", m=whole([1, 2, 3]))
    for case, sentence in (
        (rotated, "expected scale=1"),
        (packed, "packed in one input"),
        (heads, "a multiple of its 5 heads"),
        (strange, r"expected a mask of \[2\], \[4\], \[2, 5\] or \[2, 5, 5\], found \[3\]"),
    ):
        with pytest.raises(ModelError, match=sentence):
            import_model(case.written(tmp_path / "m.onnx"))
