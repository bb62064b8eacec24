"""Divisions, shifts, conversions and far arguments that trap or differ by machine, as kernels of other machines."""

from __future__ import annotations

import numpy as np
import pytest
from emulated_kernels import NOT_BY_QEMU_7, emulated, emulator_of, qemu_version
from scalar_kernels import edges
from three_ways import Example, example_of

from modelc.space.choose import chosen
from modelc.target import load_target

FAR = np.concatenate([np.geomspace(1, 3e38, 60), [np.inf, np.nan, 0, 7e6, 5.4e6, 0.5]]).astype(np.float32)
OUTSIDE = np.concatenate([[0, 0.9, 1.5, 127.5, 300, 7e4, 2.0**31, 3e9, 2.0**63, 2e19, 3e38, np.inf, np.nan]])
OUTSIDE = np.concatenate([OUTSIDE, -OUTSIDE]).astype(np.float32)


def examples() -> dict[str, Example]:
    found = {}
    for dtype in ("int8", "int32", "uint32", "int64"):
        a, b = (v.ravel() for v in np.meshgrid(edges(dtype), edges(dtype)))
        found[f"quotient_{dtype}"] = example_of("Div", [a, b])
        found[f"modulus_{dtype}"] = example_of("Mod", [a, b])
        found[f"rest_{dtype}"] = example_of("Mod", [a, b], {"fmod": 1})
        if dtype[0] == "u":
            found[f"left_{dtype}"] = example_of("BitShift", [a, b], {"direction": "LEFT"})
            found[f"right_{dtype}"] = example_of("BitShift", [a, b], {"direction": "RIGHT"})
        else:
            found[f"magnitude_{dtype}"] = example_of("Abs", [a])
        found[f"cast_{dtype}"] = example_of("Cast", [OUTSIDE], {"to": dtype})
        found[f"wide_cast_{dtype}"] = example_of("Cast", [OUTSIDE.astype(np.float64)], {"to": dtype})
    for name in ("Sin", "Cos"):
        found[name.lower()] = example_of(name, [np.concatenate([FAR, -FAR])])
    return found


@pytest.mark.parametrize("machine", ["cortex-a72", "armv7-neon", "riscv64-v"])
@pytest.mark.sweep(2)
def test_edges_emulated(machine: str) -> None:
    """No signal, and what the interpreter gives."""
    target = load_target(machine)
    casts = "cast" in NOT_BY_QEMU_7.get(machine, ()) and qemu_version(emulator_of(target)) < 8
    made = {n: e for n, e in examples().items() if not (casts and "cast" in n)}
    assert len(made) >= 16
    emulated({n: (e, chosen(e.task, target).candidate) for n, e in made.items()}, target)
