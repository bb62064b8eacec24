"""What is rounded to bytes in a model, by which scales, and what is in float16: with the float model it makes the
quantized one again. Scales are those of samples, or of each row as it is computed (dynamic)."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

import numpy as np
from numpy.typing import NDArray

from modelc.frontend.quantize.weights import LARGEST

Floats = NDArray[np.float32]
INT8, DYNAMIC, TABLE, FLOAT16, FLOAT32 = "int8", "dynamic", "table", "float16", "float32"
SYMMETRIC, ASYMMETRIC = "symmetric", "asymmetric"
NAMED = 4  # layers that a note names


@dataclass(frozen=True)
class Range:
    """How a value is rounded to uint8: `x / scale + zero`. `by` says what the range was taken from."""

    scale: float
    zero: int
    by: str = ""

    @staticmethod
    def of(low: float, high: float, by: str) -> Range:
        """The range that holds all from `low` to `high`, and 0, which is exact: padding is zeros."""
        low, high = min(float(low), 0.0), max(float(high), 0.0)
        scale = np.float32((high - low) / 255)
        if not isfinite(scale) or scale < np.finfo(np.float32).tiny:
            scale = np.float32(1)
        return Range(float(scale), int(np.clip(np.rint(-low / scale), 0, 255)), by)


@dataclass(frozen=True)
class LayerChoice:
    """What one layer multiplies, and why: int8, by ranges of samples; dynamic, which is int8 by rows as they are
    computed; float16 or float32. A table has rows of int8, and multiplies nothing. `alone` is the relative error of its
    output where its inputs are those of the float model, `network` the relative error of the outputs of the network
    where no other layer is rounded (0 where nothing had to be given back, for which it is not measured);
    `saved_seconds` the time that is saved beside float32 by estimate; all of them of bytes, if it is in float32.
    `weights` in bytes are symmetric or asymmetric; of others ""."""

    name: str
    dtype: str
    alone: float
    network: float
    saved_seconds: float
    why: str = ""
    weights: str = ""


@dataclass(frozen=True)
class Recipe:
    """`layers` of the model, in its order; the `ranges` of the values that those read which multiply bytes;
    `corrections`, what is added to their outputs by channel; `smoothed`, by value, what its channels are
    divided by. Weights go from -largest_weight to that. `summary` says of the whole what was measured."""

    layers: tuple[LayerChoice, ...]
    ranges: Mapping[str, Range]
    corrections: Mapping[str, Floats] = field(default_factory=dict)
    smoothed: Mapping[str, Floats] = field(default_factory=dict)
    largest_weight: int = LARGEST
    summary: Mapping[str, Any] = field(default_factory=dict)

    @property
    def narrow(self) -> frozenset[str]:
        """The layers that multiply bytes."""
        return self._of(INT8)

    @property
    def dynamic(self) -> frozenset[str]:
        """The layers that multiply bytes which are rounded by row."""
        return self._of(DYNAMIC)

    @property
    def tables(self) -> frozenset[str]:
        """The lookups of rows of bytes."""
        return self._of(TABLE)

    @property
    def halves(self) -> frozenset[str]:
        """The layers that multiply float16: the compiler makes them so, the quantized model has them in float32."""
        return self._of(FLOAT16)

    def _of(self, dtype: str) -> frozenset[str]:
        return frozenset(layer.name for layer in self.layers if layer.dtype == dtype)

    @property
    def asymmetric(self) -> frozenset[str]:
        """The layers in bytes whose weights have zero points."""
        return frozenset(layer.name for layer in self.layers if layer.dtype == INT8 and layer.weights == ASYMMETRIC)

    @property
    def notes(self) -> tuple[str, ...]:
        """What it comes to, for the manifest of a package."""
        multiplying, tables = len(self.narrow) + len(self.dynamic), len(self.tables)
        said = f"precision int8: {multiplying} of {len(self.layers) - tables} layers multiply bytes"
        said += f", {len(self.asymmetric)} of them with asymmetric weights" if self.asymmetric else ""
        said += f", {len(self.dynamic)} of them with activations rounded by row in each run" if self.dynamic else ""
        said += f"; {tables} table{'s have' if tables > 1 else ' has'} rows of bytes" if tables else ""
        for dtype in (FLOAT16, FLOAT32):
            names = [layer.name for layer in self.layers if layer.dtype == dtype]
            said += f"; in {dtype}: {', '.join(names[:NAMED])}{', ...' * (len(names) > NAMED)}" if names else ""
        return (said, f"drop by quantizing: {self._drop}", *self.summary.get("unseen", ()))

    @property
    def _drop(self) -> str:
        drop = f"{100 * self.summary['drop']:.3g} % of the float model's" if "drop" in self.summary else "not measured"
        judged = f" on {self.summary['held_back']} samples that were held back" if "held_back" in self.summary else ""
        return f"{drop}{judged} ({self.summary.get('said', '')})"

    def to_json(self) -> dict[str, Any]:
        return {
            "layers": [vars(layer) for layer in self.layers],
            "ranges": {name: vars(self.ranges[name]) for name in sorted(self.ranges)},
            "corrections": {name: _encoded(self.corrections[name]) for name in sorted(self.corrections)},
            "smoothed": {name: _encoded(self.smoothed[name]) for name in sorted(self.smoothed)},
            "largest_weight": self.largest_weight,
            "summary": dict(self.summary),
        }

    def report(self) -> dict[str, Any]:
        """Of each layer and of the whole, what was decided and measured."""
        return {"layers": [vars(layer) for layer in self.layers], "summary": dict(self.summary)}

    @staticmethod
    def from_json(tree: Mapping[str, Any]) -> Recipe:
        """What to_json() wrote. Raises ValueError, TypeError or LookupError for anything else."""
        ranges = {name: Range(**entry) for name, entry in tree["ranges"].items()}
        if wrong := [name for name, r in ranges.items() if not 0 < r.scale < np.inf or not 0 <= r.zero <= 255]:
            raise ValueError(f"the range of {wrong[0]!r} is {vars(ranges[wrong[0]])}; expected a scale and a byte")
        return Recipe(
            tuple(LayerChoice(**entry) for entry in tree["layers"]),
            ranges,
            {name: _decoded(text) for name, text in tree["corrections"].items()},
            {name: _decoded(text) for name, text in tree["smoothed"].items()},
            tree["largest_weight"],
            tree["summary"],
        )


def _encoded(numbers: Floats) -> str:
    return base64.b64encode(np.ascontiguousarray(numbers, "<f4").tobytes()).decode()


def _decoded(text: str) -> Floats:
    numbers = np.frombuffer(base64.b64decode(text, validate=True), "<f4").astype(np.float32)
    if not np.isfinite(numbers).all():
        raise ValueError("a number of the recipe is not finite")
    return numbers
