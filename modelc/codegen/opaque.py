"""Opaque Blocks as C functions: one implementation for each meaning of ops/opaque.py.

Tensors are compact and row-major. A function has the kernels' ABI,

    void SYMBOL(const T0 *x0, ..., T *y0, ..., uint8_t *scratch, int32_t begin, int32_t end)

and runs iterations [begin, end) of its `extent`; the result does not depend on how they are cut. float16 and bfloat16
are handled as their bits, bools as bytes of 0 and 1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

from modelc.codegen.opaque_body import C_TYPES, Body, Tensor, rank_of
from modelc.codegen.opaque_finding import nms_list, nms_rows, non_zero, unique
from modelc.codegen.opaque_numeric import det, roi_align
from modelc.codegen.opaque_trees import trees
from modelc.errors import InvalidIR

Implementation = Callable[[Mapping[str, Any], Sequence[Tensor], Sequence[Tensor]], Body]


def opaque_source(
    symbol: str, meaning: str, attrs: Mapping[str, Any], inputs: Sequence[Tensor], outputs: Sequence[Tensor]
) -> tuple[str, int, int]:
    """(C source, extent, scratch bytes) of the function `symbol`, a translation unit of its own. Raises InvalidIR for
    a meaning without an implementation."""
    names = [*(f"x{k}" for k in range(len(inputs))), *(f"y{k}" for k in range(len(outputs)))]
    if meaning not in IMPLEMENTATIONS:
        raise InvalidIR(f"no implementation of the opaque '{meaning}'; there are {', '.join(sorted(IMPLEMENTATIONS))}")
    if prod(outputs[0][1]):
        body = IMPLEMENTATIONS[meaning](attrs, inputs, outputs)
    else:
        body = Body("", "".join(f"    (void){name};\n" for name in [*names, "begin", "end"]), extent=0)
    kinds = [*(f"const {C_TYPES[dtype]}" for dtype, _ in inputs), *(C_TYPES[dtype] for dtype, _ in outputs)]
    parameters = [f"{kind} *{name}" for kind, name in zip(kinds, names, strict=True)]
    source = f"""#include <stdint.h>
#include <string.h>

{body.helpers}
void {symbol}({", ".join(parameters)}, uint8_t *scratch, int32_t begin, int32_t end) {{
    (void)scratch;
{body.statements}}}
"""
    return source, body.extent, body.scratch_bytes


# --- top-k --------------------------------------------------------------------------------------------------------


def top_k(attrs: Mapping[str, Any], inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Body:
    """Each row's best k in a heap whose root is the worst of them, then taken from it one by one: O(n log k).

    An element's rank is an unsigned integer that orders as the values do (NaN above all, -0 as 0), so that one
    comparison serves all dtypes; of equal ranks the lower index comes first.
    """
    ((dtype, shape),) = inputs
    axis, k = attrs["axis"], attrs["k"]
    n, inner = shape[axis], prod(shape[axis + 1 :])
    rows = prod(shape[:axis]) * inner
    invert = "" if attrs["largest"] else "~"
    indices = f"        y1[(o * {k} + j) * {inner} + r] = at;\n" if len(outputs) > 1 else ""
    statements = f"""\
    entry *heap = (entry *)scratch;
    for (int64_t row = begin; row < end; row++) {{
        const int64_t o = row / {inner}, r = row % {inner};
        const {C_TYPES[dtype]} *x = x0 + o * {n * inner} + r;
        for (int32_t i = 0; i < {k}; i++) {{
            heap[i].rank = {invert}rank_of(x[(int64_t)i * {inner}]);
            heap[i].index = i;
        }}
        for (int32_t i = {k} / 2 - 1; i >= 0; i--) sink(heap, i, {k}, heap[i]);
        for (int32_t i = {k}; i < {n}; i++) {{
            const entry e = {{{invert}rank_of(x[(int64_t)i * {inner}]), i}};
            if (before(e, heap[0])) sink(heap, 0, {k}, e);
        }}
        for (int64_t j = {k} - 1; j >= 0; j--) {{
            const int32_t at = heap[0].index;
            sink(heap, 0, (int32_t)j, heap[j]);
            y0[(o * {k} + j) * {inner} + r] = x[(int64_t)at * {inner}];
    {indices}        }}
    }}
"""
    return Body(rank_of(dtype) + _HEAP, statements, rows, 16 * k)


_HEAP = """\
typedef struct {
    uint64_t rank;
    int32_t index;
} entry;

static inline int before(entry a, entry b) {
    return a.rank > b.rank || (a.rank == b.rank && a.index < b.index);
}

/* Puts `e` at `i` or below it in a heap of `n` whose root comes last. */
static void sink(entry *heap, int32_t i, int32_t n, entry e) {
    for (int32_t child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && before(heap[child], heap[child + 1])) child++;
        if (!before(e, heap[child])) break;
        heap[i] = heap[child];
    }
    heap[i] = e;
}
"""


# --- scatter ------------------------------------------------------------------------------------------------------


def scatter_nd(attrs: Mapping[str, Any], inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Body:
    """Iterations are the slices that an index names: each thread copies its own, then goes through all indices in
    order and applies those that fall to it. Indices out of range are passed over."""
    (dtype, shape), (_, index_shape), _ = inputs
    depth = index_shape[-1]
    sizes, slice_size = shape[:depth], prod(shape[depth:])
    offset = "\n".join(
        f"""\
        c = at[{d}] < 0 ? at[{d}] + {size} : at[{d}];
        inside &= c >= 0 && c < {size};
        slot = slot * {size} + c;"""
        for d, size in enumerate(sizes)
    )
    statements = f"""\
    memmove(y0 + (int64_t)begin * {slice_size}, x0 + (int64_t)begin * {slice_size},
            (size_t)(end - begin) * {slice_size} * sizeof *y0);
    for (int64_t u = 0; u < {prod(index_shape[:-1])}; u++) {{
        const {C_TYPES[inputs[1][0]]} *at = x1 + u * {depth};
        int64_t c = 0, slot = 0;
        int inside = 1;
        (void)at, (void)c;
{offset}
        if (!inside || slot < begin || slot >= end) continue;
        for (int64_t s = 0; s < {slice_size}; s++)
            y0[slot * {slice_size} + s] = combine(y0[slot * {slice_size} + s], x2[u * {slice_size} + s]);
    }}
"""
    return Body(_combine(attrs["reduction"], dtype), statements, prod(sizes))


def scatter_elements(attrs: Mapping[str, Any], inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Body:
    """Iterations are the lines along the axis; updates of a line are applied in order. `indices` may be smaller than
    the tensor in every dimension. Indices out of range are passed over."""
    (dtype, shape), (_, index_shape), _ = inputs
    axis = attrs["axis"] % len(shape)
    n, count, inner = shape[axis], index_shape[axis], prod(shape[axis + 1 :])
    index_inner = prod(index_shape[axis + 1 :])
    statements = f"""\
    for (int64_t line = begin; line < end;) {{
        const int64_t o = line / {inner}, first = line % {inner};
        const int64_t last = end - line < {inner} - first ? first + end - line : {inner};
        const int64_t from = o * {n * inner};
        line += last - first;
        for (int64_t i = 0; i < {n}; i++)
            memmove(y0 + from + i * {inner} + first, x0 + from + i * {inner} + first,
                    (size_t)(last - first) * sizeof *y0);
        const int64_t outer = outer_place(o);
        if (outer < 0) continue;
        for (int64_t a = 0; a < {count}; a++)
            for (int64_t r = first; r < last; r++) {{
                const int64_t p = inner_place(r);
                if (p < 0) continue;
                const int64_t u = (outer * {count} + a) * {index_inner} + p;
                const int64_t i = x1[u] < 0 ? (int64_t)x1[u] + {n} : (int64_t)x1[u];
                if (i < 0 || i >= {n}) continue;
                y0[from + i * {inner} + r] = combine(y0[from + i * {inner} + r], x2[u]);
            }}
    }}
"""
    helpers = _combine(attrs["reduction"], dtype)
    helpers += _place("outer_place", shape[:axis], index_shape[:axis])
    helpers += _place("inner_place", shape[axis + 1 :], index_shape[axis + 1 :])
    return Body(helpers, statements, prod(shape) // n)


def _place(name: str, shape: tuple[int, ...], part: tuple[int, ...]) -> str:
    """C's NAME(flat): an element of `shape` as an element of its corner `part`, or -1 if it lies outside."""
    if shape == part:
        return f"static inline int64_t {name}(int64_t flat) {{\n    return flat;\n}}\n\n"
    steps = "".join(
        f"""\
    if (flat % {size} >= {kept}) return -1;
    place += flat % {size} * {prod(part[d + 1 :])};
    flat /= {size};
"""
        for d, (size, kept) in reversed(list(enumerate(zip(shape, part, strict=True))))
    )
    return f"static inline int64_t {name}(int64_t flat) {{\n    int64_t place = 0;\n{steps}    return place;\n}}\n\n"


def _combine(reduction: str, dtype: str) -> str:
    """C's combine(old, new). Integers wrap; max and min of a NaN are NaN; 16-bit floats are combined as floats."""
    kind = C_TYPES[dtype]
    if dtype in ("float16", "bfloat16") and reduction != "none":
        floats = _combine(reduction, "float32").replace("combine", "combine_floats")
        call = f"{dtype}_of(combine_floats(float_of(old), float_of(new)))"
        return floats + _HALVES[dtype] + _function(kind, call)
    nan = " || old != old" if dtype.startswith("float") else ""
    table = {"none": "new", "max": f"old > new{nan} ? old : new", "min": f"old < new{nan} ? old : new"}
    if dtype == "bool":
        table |= {"add": "old | new", "mul": "old & new"}
    elif dtype.startswith("float"):
        table |= {"add": "old + new", "mul": "old * new"}
    else:
        table |= {"add": f"({kind})((uint64_t)old + (uint64_t)new)", "mul": f"({kind})((uint64_t)old * (uint64_t)new)"}
    if reduction not in table:
        raise InvalidIR(f"a scatter's reduction is one of {', '.join(sorted(table))}, found {reduction!r}")
    return _function(kind, table[reduction])


def _function(kind: str, value: str) -> str:
    return f"static inline {kind} combine({kind} old, {kind} new) {{\n    (void)old;\n    return {value};\n}}\n\n"


_HALVES = {
    "bfloat16": """\
static inline float float_of(uint16_t half) {
    const uint32_t bits = (uint32_t)half << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline uint16_t bfloat16_of(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if (value != value) return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

""",
    "float16": """\
static inline float float_of(uint16_t half) {
    const uint32_t sign = (uint32_t)(half & 0x8000) << 16, magnitude = half & 0x7fff;
    uint32_t bits = magnitude >= 0x7c00 ? (magnitude << 13) + 0x70000000 : (magnitude << 13) + 0x38000000;
    float value;
    if (magnitude < 0x400) {
        value = (float)magnitude * 0x1p-24f;
        memcpy(&bits, &value, sizeof bits);
    }
    bits |= sign;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline uint16_t float16_of(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    const uint16_t sign = (uint16_t)(bits >> 16 & 0x8000);
    bits &= 0x7fffffff;
    if (bits > 0x7f800000) return sign | 0x7e00;
    if (bits >= 0x477ff000) return sign | 0x7c00;
    if (bits >= 0x38800000) return sign | (uint16_t)((bits - 0x38000000 + 0xfff + (bits >> 13 & 1)) >> 13);
    float tiny; /* below 2**-14: adding 0.5 leaves the multiple of 2**-24 in the low bits, rounded to even */
    memcpy(&tiny, &bits, sizeof tiny);
    tiny += 0.5f;
    memcpy(&bits, &tiny, sizeof bits);
    return sign | (uint16_t)(bits - 0x3f000000);
}

""",
}

IMPLEMENTATIONS: dict[str, Implementation] = {
    "topk": top_k,
    "scatter_nd": scatter_nd,
    "scatter_elements": scatter_elements,
    "trees": trees,
    "roi_align": roi_align,
    "det": det,
    "non_zero": non_zero,
    "nms_rows": nms_rows,
    "nms_list": nms_list,
    "unique": unique,
}
