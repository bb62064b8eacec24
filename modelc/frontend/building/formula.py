"""The meaning of one ONNX node, written operator by operator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from modelc.frontend.building.build import Builder, OnnxNode
from modelc.ir.expr import DTYPES


@dataclass(frozen=True)
class Formula:
    """Adds operators to the Graph as parts of what `n` means. Called with an operator and its inputs, it gives the
    name of the first output; empty names are absent inputs."""

    b: Builder
    n: OnnxNode

    def __call__(self, op: str, *inputs: str, outputs: Sequence[str] | None = None, **attrs: Any) -> str:
        return self.b.emit(self.n, op, inputs, attrs, outputs)

    def dtype(self, x: str) -> str:
        return self.b.value(x).dtype

    def shape(self, x: str) -> tuple[int, ...]:
        return self.b.shape(x)

    def constant(self, value: Any, dtype: str = "float32") -> str:
        return self.b.constant(np.asarray(value).astype(DTYPES[dtype]), f"{self.n.outputs[0]}_constant")

    def cast(self, x: str, dtype: str) -> str:
        return x if self.dtype(x) == dtype else self("Cast", x, to=dtype)

    def reshaped(self, x: str, *shape: int) -> str:
        return x if self.shape(x) == shape else self.b.reshape(self.n, x, shape)

    def transposed(self, x: str, *perm: int) -> str:
        return self("Transpose", x, perm=perm)

    def part(self, x: str, axis: int, start: int, end: int) -> str:
        """x[start:end] along `axis`."""
        bounds = (self.constant([k], "int64") for k in (start, end, axis))
        return self("Slice", x, *bounds)

    def scalar(self, k: int, what: str) -> str:
        """Input `k`, which has to be one number."""
        x = self.n.input(k)
        if self.b.value(x).shape not in ((), (1,)):
            raise self.n.fail(f"expected one number as {what}, found {list(self.shape(x))}")
        return self.reshaped(x)

    def hand(self, k: int, x: str) -> None:
        """Lets output `k` be the value `x`."""
        self.b.bind(self.n, self.n.outputs[k], x)
