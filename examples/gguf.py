"""Reads GGUF, llama.cpp's file of a language model: `metadata` by name, and tensors as float32.

    file = Gguf("model.gguf")
    file.metadata["llama.block_count"], file.tensor("token_embd.weight").shape

The layout is that of the specification (github.com/ggml-org/ggml, docs/gguf.md); blocks of quantized numbers are those
of ggml's formats Q4_1 and Q8_0.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
TEXT, LIST = 8, 9


class Gguf:
    """A file that is read as far as it is asked for."""

    def __init__(self, path: str | Path) -> None:
        self._data = np.memmap(path, np.uint8, "r")
        self._at = 0
        magic, _, tensors, entries = self._read("4sIQQ")
        if magic != b"GGUF":
            raise ValueError(f"{path} is no GGUF file")
        self.metadata: dict[str, Any] = {}
        for _ in range(entries):
            name = self._text()
            self.metadata[name] = self._value(self._number("I"))
        self._tensors = {}
        for _ in range(tensors):
            name, rank = self._text(), self._number("I")
            shape = self._read(f"{rank}Q")[::-1]
            self._tensors[name] = (shape, self._number("I"), self._number("Q"))
        alignment = self.metadata.get("general.alignment", 32)
        self._begin = -(-self._at // alignment) * alignment

    def tensor(self, name: str) -> Floats:
        """In the order of dimensions that NumPy has: the last is the innermost."""
        shape, kind, offset = self._tensors[name]
        if kind not in FORMATS:
            raise ValueError(f"{name} is stored in format {kind}; expected one of {sorted(FORMATS)}")
        block, size, read = FORMATS[kind]
        begin, blocks = self._begin + offset, prod(shape) // block
        rows = np.asarray(self._data[begin : begin + blocks * size]).reshape(blocks, size)
        return read(rows).reshape(shape)

    def _read(self, form: str) -> tuple[Any, ...]:
        values = struct.unpack_from(f"<{form}", self._data, self._at)
        self._at += struct.calcsize(f"<{form}")
        return values

    def _number(self, form: str) -> Any:
        return self._read(form)[0]

    def _text(self) -> str:
        return str(self._number(f"{self._number('Q')}s").decode())

    def _value(self, kind: int) -> Any:
        if kind == TEXT:
            return self._text()
        if kind == LIST:
            inner, count = self._read("IQ")
            return [self._value(inner) for _ in range(count)]
        return self._number(SCALARS[kind])


def _halves(rows: NDArray[np.uint8], begin: int) -> Floats:
    """A float16 of each block, as a column."""
    return rows[:, begin : begin + 2].copy().view(np.float16).astype(np.float32)


def _nibbles(rows: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The lower halves of all bytes, then the upper ones."""
    return np.concatenate([rows & 15, rows >> 4], axis=1)


def _q4_1(rows: NDArray[np.uint8]) -> Floats:
    return _halves(rows, 0) * _nibbles(rows[:, 4:]) + _halves(rows, 2)


def _q8_0(rows: NDArray[np.uint8]) -> Floats:
    return _halves(rows, 0) * rows[:, 2:].view(np.int8)


FORMATS: dict[int, tuple[int, int, Callable[[NDArray[np.uint8]], Floats]]] = {  # numbers and bytes of a block
    0: (1, 4, lambda rows: rows.copy().view(np.float32)),
    3: (32, 20, _q4_1),
    8: (32, 34, _q8_0),
}
