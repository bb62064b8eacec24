"""Ensembles of decision trees as C functions (opaque.py)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from modelc.codegen.opaque_body import C_TYPES, Body, Tensor
from modelc.ir.expr import DTYPES
from modelc.ops.tree_walks import CODE_BITS, LESS, MODES

LANES = 16  # walks at once, a step of each in turn, so that none waits for another's loads
ROWS = 128  # samples that go down a tree before the next one
SCRATCH = 1 << 16  # bytes that a block of samples takes where they are copied
COMPARISONS = {MODES["LEQ"]: "<=", MODES["LT"]: "<", MODES["GTE"]: ">=", MODES["GT"]: ">"}


def trees(attrs: Mapping[str, Any], inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Body:
    """Iterations are as many samples as there are lanes. A block of samples goes down tree after tree, so that a tree's
    nodes are near while it does; samples that do not fill all lanes go down several trees at once. A step has no
    branch: it adds the answer to where the children are, and a leaf leads to itself."""
    (real, (samples, features)), (word, _), _, (_, (roots, _)), *_ = inputs
    ((dtype, (_, targets)),) = outputs
    columns = features * (2 if attrs["filled"] else 1)
    block = ROWS
    if attrs["filled"]:
        block = max(LANES, min(ROWS, SCRATCH // (columns * DTYPES[real].itemsize) // LANES * LANES))
    below = attrs["bits"] + (0 if attrs["code"] else CODE_BITS)  # the bits in front of how far children are behind
    first = {"add": "0", "min": "INFINITY", "max": "-INFINITY"}[attrs["aggregate"]]
    together = _descent(lambda lane: f"x + {lane * columns}", lambda lane: "root[0]", below)
    apart = _descent(
        lambda lane: "x", lambda lane: f"x3[3 * (tree + {lane} < {roots} ? tree + {lane} : {roots} - 1)]", below
    )
    statements = f"""\
    const int64_t last = (int64_t)end * {LANES} < {samples} ? (int64_t)end * {LANES} : {samples};
    for (int64_t row = (int64_t)begin * {LANES}; row < last; row += {block}) {{
        const int64_t rows = last - row < {block} ? last - row : {block};
        const int64_t full = rows / {LANES} * {LANES};
        {C_TYPES[dtype]} *y = y0 + row * {targets};
{_samples(attrs, features, block, C_TYPES[real])}\
        for (int64_t k = 0; k < rows * {targets}; k++) y[k] = {first};
        for (int32_t tree = 0; full && tree < {roots}; tree++) {{
            const int32_t *root = x3 + 3 * tree, shallowest = root[1], deepest = root[2];
            for (int64_t r = 0; r < full; r += {LANES}) {{
                const {C_TYPES[real]} *x = block + r * {columns};
{together}\
                for (int l = 0; l < {LANES}; l++) give(y + (r + l) * {targets}, at[l], x4, x5, x6);
            }}
        }}
        for (int32_t tree = 0; full < rows && tree < {roots}; tree += {LANES}) {{
            const int count = {roots} - tree < {LANES} ? {roots} - tree : {LANES};
            int32_t shallowest = INT32_MAX, deepest = 0;
            for (int l = 0; l < count; l++) {{
                const int32_t *root = x3 + 3 * (tree + l);
                shallowest = root[1] < shallowest ? root[1] : shallowest;
                deepest = root[2] > deepest ? root[2] : deepest;
            }}
            for (int64_t r = full; r < rows; r++) {{
                const {C_TYPES[real]} *x = block + r * {columns};
{apart}\
                for (int l = 0; l < count; l++) give(y + r * {targets}, at[l], x4, x5, x6);
            }}
        }}
"""
    if attrs["aggregate"] != "add":  # nothing was given
        statements += f"        for (int64_t k = 0; k < rows * {targets}; k++) y[k] = y[k] == {first} ? 0 : y[k];\n"
    helpers = _next(attrs, below, C_TYPES[real], C_TYPES[word]) + _give(attrs, targets, C_TYPES[dtype])
    scratch = block * columns * DTYPES[real].itemsize if attrs["filled"] else 0
    return Body(helpers, statements + "    }\n", -(-samples // LANES), scratch)


def _samples(attrs: Mapping[str, Any], features: int, block: int, real: str) -> str:
    """C's block: the samples from `row` on, each followed by itself with something else than NaNs where such a column
    is asked about."""
    if not attrs["filled"]:
        return f"        const {real} *block = x0 + row * {features};\n"
    infinity = "-INFINITY" if attrs["code"] & LESS else "INFINITY"
    return f"""\
        {real} *block = ({real} *)scratch;
        for (int64_t r = 0; r < rows; r++)
            for (int64_t f = 0; f < {features}; f++) {{
                const {real} value = x0[(row + r) * {features} + f];
                block[r * {2 * features} + f] = value;
                block[r * {2 * features} + {features} + f] = value == value ? value : {infinity};
            }}
"""


def _descent(sample: Callable[[int], str], root: Callable[[int], str], below: int) -> str:
    """C's at[lane], the leaves that are reached; before that lanes have names, so that they are in registers."""
    gap = " " * 20
    starts = [f"{gap[4:]}size_t at_{l} = (size_t){root(l)};\n" for l in range(LANES)]
    steps = [f"{gap}at_{l} = next(at_{l}, {sample(l)}, x1, x2);\n" for l in range(LANES)]
    moves = [f"{gap}moved |= x1[at_{l}] >> {below};\n" for l in range(LANES)]
    return f"""\
{"".join(starts)}\
                for (int32_t step = 0; step < shallowest; step++) {{
{"".join(steps)}\
                }}
                for (int64_t step = shallowest, moved = 1; moved && step < deepest; step++) {{
                    moved = 0;
{"".join(f"{move}{step}" for move, step in zip(moves, steps, strict=True))}\
                }}
                const size_t at[] = {{{", ".join(f"at_{l}" for l in range(LANES))}}};
"""


def _next(attrs: Mapping[str, Any], below: int, real: str, word: str) -> str:
    bits, code = attrs["bits"], attrs["code"]
    if code:
        answer = f"value {COMPARISONS[code]} splits[at]"
    else:
        answer = f"node >> ({bits} + 2 * (value <= splits[at]) + (value >= splits[at])) & 1"
    return f"""\
#include <math.h>
#include <stddef.h>

static inline size_t next(size_t at, const {real} *x, const {word} *nodes, const {real} *splits) {{
    const {word} node = nodes[at];
    const {real} value = x[node & {(1 << bits) - 1}];
    return at + (size_t)(node >> {below}) + (size_t)({answer});
}}

"""


def _give(attrs: Mapping[str, Any], targets: int, dtype: str) -> str:
    combine = {"add": "+= w", "min": "= w < y[t] ? w : y[t]", "max": "= w > y[t] ? w : y[t]"}[attrs["aggregate"]]
    loop = "for (int32_t k = spans[leaf]; k < spans[leaf + 1]; k++)"
    target = "targets[k]"
    if attrs["dense"]:
        loop, target = f"for (int32_t k = spans[leaf]; k < spans[leaf] + {targets}; k++)", "k - spans[leaf]"
    return f"""\
static inline void give({dtype} *y, size_t leaf, const int32_t *spans, const int32_t *targets,
                        const {dtype} *weights) {{
    (void)targets;
    {loop} {{
        const int32_t t = {target};
        const {dtype} w = weights[k];
        y[t] {combine};
    }}
}}

"""
