"""A small model of hand-written kernels, which the tests of packages and of the runtime share."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest

from modelc.errors import ToolchainError
from modelc.package import (
    ArenaTensor,
    Argument,
    PackageSpec,
    PackageTarget,
    Plan,
    Step,
    TensorInfo,
    emulator,
    find_toolchain,
)
from modelc.package.toolchain import native_machine

COLUMNS = 64
KERNELS = """
#include <math.h>
#include <stdint.h>
#include <string.h>
enum { COLUMNS = 64 };
/* As LLVM does for half floats: the same weak helper in many objects must be neither a clash nor an export. */
__attribute__((weak, visibility("default"))) float __extendhfsf2(uint16_t x) { return (float)x; }
void scale(const float *x, const float *w, float *scaled, uint8_t *scratch, int32_t begin, int32_t end) {
    for (int32_t i = begin; i < end; i++)
        for (int j = 0; j < COLUMNS; j++) scaled[i * COLUMNS + j] = x[i * COLUMNS + j] * w[j];
}
void row_norm(const float *scaled, float *norms, uint8_t *scratch, int32_t begin, int32_t end) {
    float *squares = (float *)scratch;
    for (int32_t i = begin; i < end; i++) {
        for (int j = 0; j < COLUMNS; j++) squares[j] = scaled[i * COLUMNS + j] * scaled[i * COLUMNS + j];
        norms[i] = 0;
        for (int j = 0; j < COLUMNS; j++) norms[i] += squares[j];
        norms[i] = sqrtf(norms[i]) + expf(-norms[i]);
    }
}
void normalise(const float *scaled, const float *norms, float *y, uint8_t *scratch, int32_t begin, int32_t end) {
    for (int32_t i = begin; i < end; i++)
        for (int j = 0; j < COLUMNS; j++) y[i * COLUMNS + j] = scaled[i * COLUMNS + j] / (norms[i] + 1);
}
void count(const uint8_t *mask, int64_t *total, uint8_t *scratch, int32_t begin, int32_t end) {
    *total = 0;
    for (int i = 0; i < 5; i++) *total += mask[i];
}
"""
NATIVE = native_machine()
NATIVE_TRIPLE = NATIVE.gnu_triple if NATIVE else "x86_64-linux-gnu"


def plan_of(rows: int, prefix: str = "") -> Plan:
    scaled, norms = Argument("arena", offset=0), Argument("arena", offset=rows * COLUMNS * 4)
    x, mask = Argument("input", 0), Argument("input", 1)
    y, total = Argument("output", 0), Argument("output", 1)
    work = {"flops": 3.0 * rows * COLUMNS, "bytes": 8.0 * rows * COLUMNS}
    return Plan(
        inputs=(TensorInfo("x", "float32", (rows, COLUMNS)), TensorInfo("mask", "bool", (5,))),
        outputs=(TensorInfo("y", "float32", (rows, COLUMNS)), TensorInfo("total", "int64", ())),
        steps=(
            Step("scale", f"{prefix}scale", (x, Argument("params", offset=64), scaled), rows, nodes=("Mul_0",), **work),
            Step('row norm \\ "?', f"{prefix}row_norm", (scaled, norms), rows, scratch_bytes=COLUMNS * 4),
            Step("normalise", f"{prefix}normalise", (scaled, norms, y), rows),
            Step("count", f"{prefix}count", (mask, total), 1, serial=True, dtype="int64"),
        ),
        arena_bytes=rows * COLUMNS * 4 + rows * 4,
        memory=(ArenaTensor("scaled", 0, rows * COLUMNS * 4),),
    )


@cache
def object_for(triple: str, prefix: str = "") -> bytes:
    """The kernels; their names begin with `prefix`."""
    with TemporaryDirectory() as folder:
        (Path(folder) / "kernels.c").write_text(KERNELS)
        # Vectorised with the scalar order of operations, so any machine computes the same bits but for expf.
        names = [f"-D{name}={prefix}{name}" for name in ("scale", "row_norm", "normalise", "count")]
        anywhere = ["-fPIC"] * ("windows" not in triple)
        flags = ["-O2", "-ffp-contract=off", "-g0", *anywhere, *names]
        find_toolchain(triple).compile([*flags, "-c", "kernels.c", "-o", "kernels.o"], Path(folder))
        return (Path(folder) / "kernels.o").read_bytes()


def spec_of(triple: str = NATIVE_TRIPLE, features: tuple[str, ...] = (), **changes: object) -> PackageSpec:
    weights = np.linspace(0.5, 2, COLUMNS, dtype=np.float32)
    parts: dict[str, object] = {
        "name": "tiny",
        "target": PackageTarget("any", triple, features),
        "variants": (plan_of(40), plan_of(7)),
        "objects": {"b": object_for(triple)},
        "params": ((0, np.arange(3, dtype=np.int8)), (64, weights)),
        "choices": {"conv": {"tile": [1, 2]}},
        "versions": {"modelc": "0"},
        "notes": ("a note",),
    }
    return PackageSpec(**{**parts, **changes})  # type: ignore[arg-type]


def inputs_of(rows: int = 40) -> dict[str, np.ndarray]:
    x = np.random.default_rng(rows).standard_normal((rows, COLUMNS)).astype(np.float32)
    return {"x": x, "mask": np.array([1, 0, 1, 1, 0], dtype=bool)}


def meaning(inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    scaled = inputs["x"].astype(np.float64) * np.linspace(0.5, 2, COLUMNS, dtype=np.float32)
    squares = (scaled**2).sum(axis=1, keepdims=True)
    return {"y": scaled / (np.sqrt(squares) + np.exp(-squares) + 1), "total": np.array(inputs["mask"].sum())}


def check_outputs(outputs: dict[str, np.ndarray], inputs: dict[str, np.ndarray]) -> None:
    expected = meaning(inputs)
    assert list(outputs) == ["y", "total"]
    np.testing.assert_allclose(outputs["y"], expected["y"], rtol=1e-5)
    assert outputs["total"].shape == () and outputs["total"] == expected["total"]


def skip_without_tools(triple: str) -> None:
    try:
        find_toolchain(triple), emulator(triple)
    except ToolchainError as error:
        pytest.skip(str(error))
