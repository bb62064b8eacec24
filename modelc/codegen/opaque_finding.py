"""Opaque Blocks that find what depends on data (ops/finding.py), as C functions: the size first, zeros beyond it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

from modelc.codegen.opaque_body import C_TYPES, Body, Tensor, rank_of


def non_zero(attrs: Mapping[str, Any], inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Body:
    """One iteration: where an element goes depends on all before it."""
    ((_, shape),) = inputs
    room, rank = attrs["room"], len(shape)
    places = "".join(
        f"            y1[{d * room} + count] = rest % {shape[d]};\n            rest /= {shape[d]};\n"
        for d in reversed(range(rank))
    )
    statements = f"""\
    for (int32_t once = begin; once < end; once++) {{
        int64_t count = 0;
        for (int64_t i = 0; i < {prod(shape)}; i++) {{
            int64_t rest = i;
            if (!x0[i]) continue;
{places}            count++;
        }}
        for (int d = 0; d < {rank}; d++) memset(y1 + d * (int64_t){room} + count, 0, (size_t)({room} - count) * 8);
        y0[0] = count;
    }}
"""
    return Body("", statements, 1)


# --- non-max suppression ------------------------------------------------------------------------------------------


def nms_rows(attrs: Mapping[str, Any], inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Body:
    """Iterations are the classes of images. The candidates lie in a heap whose root is the best of them."""
    (dtype, (_, count, _)), (_, (_, classes, _)), *_ = inputs
    given = {name: f"x{k}[0]" for k, name in enumerate(attrs["limits"], 2)}
    room, kind = attrs["room"], C_TYPES[dtype]
    there = f"limited({given['there']}, {count})" if "there" in given else str(count)
    wanted = f"own[i] > {given['score']}" if "score" in given else "1"
    statements = f"""\
    candidate *heap = (candidate *)scratch;
    for (int64_t row = begin; row < end; row++) {{
        const {kind} *own = x1 + row * {count}, *boxes = x0 + row / {classes} * {4 * count};
        const int64_t there = {there}, most = limited({given["most"]}, {room});
        int64_t *kept = y0 + row * {room}, stay = 0;
        int32_t n = 0;
        for (int32_t i = 0; i < there; i++)
            if ({wanted}) heap[n++] = (candidate){{own[i], i}};
        for (int32_t i = n / 2 - 1; i >= 0; i--) sink(heap, i, n, heap[i]);
        while (n && stay < most) {{
            const int32_t best = heap[0].index;
            int alone = 1;
            n--;
            if (n) sink(heap, 0, n, heap[n]);
            for (int64_t k = 0; alone && k < stay; k++)
                alone = !overlap(boxes + 4 * (int64_t)best, boxes + 4 * kept[k], {given.get("iou", 0)});
            if (alone) kept[stay++] = best;
        }}
        memset(kept + stay, 0, (size_t)({room} - stay) * 8);
        y1[row] = stay;
    }}
"""
    helpers = _SUPPRESS.replace("KIND", kind).replace("CORNERS", _CENTERED if attrs["center"] else _OPPOSITE)
    return Body(helpers.replace("KIND", kind), statements, outputs[1][1][0], 16 * count)


_CENTERED = """\
        const KIND half = box[d + 2] / 2;
        *low = box[d] - half, *high = box[d] + half;"""
_OPPOSITE = """\
        const int other = box[d] >= box[d + 2];
        *low = box[other ? d + 2 : d], *high = box[other ? d : d + 2];"""
_SUPPRESS = """\
typedef struct {
    KIND score;
    int32_t index;
} candidate;

static inline int64_t limited(int64_t given, int64_t most) {
    return given < 0 ? 0 : given < most ? given : most;
}

static inline int before(candidate a, candidate b) {
    return a.score > b.score || (a.score == b.score && a.index < b.index);
}

/* Puts `c` at `i` or below it in a heap of `n` whose root comes first. */
static void sink(candidate *heap, int32_t i, int32_t n, candidate c) {
    for (int32_t child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && before(heap[child + 1], heap[child])) child++;
        if (!before(heap[child], c)) break;
        heap[i] = heap[child];
    }
    heap[i] = c;
}

static inline void side(const KIND *box, int d, KIND *low, KIND *high) {
CORNERS
}

/* Whether what two boxes share is more than `threshold` of what they cover together. */
static int overlap(const KIND *a, const KIND *b, KIND threshold) {
    KIND one = 1, two = 1, area = 1;
    for (int d = 1; d >= 0; d--) {
        KIND a_low, a_high, b_low, b_high;
        side(a, d, &a_low, &a_high);
        side(b, d, &b_low, &b_high);
        const KIND low = a_low > b_low ? a_low : b_low, high = a_high < b_high ? a_high : b_high;
        if (!(high > low)) return 0;
        one *= a_high - a_low, two *= b_high - b_low, area *= high - low;
    }
    const KIND together = one + two - area;
    return area > 0 && one > 0 && two > 0 && together > 0 && area / together > threshold;
}
"""


def nms_list(attrs: Mapping[str, Any], inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Body:
    """One iteration."""
    (_, (rows, most)), _ = inputs
    statements = f"""\
    for (int32_t once = begin; once < end; once++) {{
        int64_t count = 0;
        for (int64_t row = 0; row < {rows}; row++)
            for (int64_t k = 0; k < x1[row]; k++) {{
                y1[3 * count] = row / {attrs["classes"]};
                y1[3 * count + 1] = row % {attrs["classes"]};
                y1[3 * count + 2] = x0[row * {most} + k];
                count++;
            }}
        memset(y1 + 3 * count, 0, (size_t)({attrs["room"]} - count) * 24);
        y0[0] = count;
    }}
"""
    return Body("", statements, 1)


# --- unique -------------------------------------------------------------------------------------------------------


def unique(attrs: Mapping[str, Any], inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Body:
    """One iteration: the slices are sorted, of equal ones the first first, so that each group begins with its first."""
    (dtype, shape), *counts = inputs
    axis, room = attrs["axis"], attrs["room"]
    n, inner, outer = shape[axis], prod(shape[axis + 1 :]), prod(shape[:axis])
    if attrs["sorted"]:
        numbered = """\
        for (int64_t k = 0; k < there; k++)
            if (first[order[k]] == order[k]) number[order[k]] = (int32_t)count++;
"""
    else:
        numbered = """\
        for (int64_t i = 0; i < there; i++)
            if (first[i] == i) number[i] = (int32_t)count++;
"""
    statements = f"""\
    for (int32_t once = begin; once < end; once++) {{
        const int64_t there = {f"x1[0] < 0 ? 0 : x1[0] < {n} ? x1[0] : {n}" if counts else n};
        int32_t *order = (int32_t *)scratch, *first = order + {n}, *number = first + {n};
        const sizes all = {{{outer}, {n}, {inner}}};
        int64_t count = 0;
        sort(x0, all, order, first, there);
        for (int64_t k = 0; k < there; k++)
            first[order[k]] = k && !compare(x0, all, order[k - 1], order[k]) ? first[order[k - 1]] : order[k];
{numbered}        memset(y1, 0, sizeof *y1 * {outer * inner * room});
        memset(y2, 0, 8 * {room});
        memset(y3, 0, 8 * {n});
        memset(y4, 0, 8 * {room});
        for (int64_t i = 0; i < there; i++) {{
            const int64_t to = number[first[i]];
            y3[i] = to;
            y4[to]++;
            if (first[i] != i) continue;
            y2[to] = i;
            for (int64_t o = 0; o < {outer}; o++)
                memcpy(y1 + (o * {room} + to) * {inner}, x0 + (o * {n} + i) * {inner}, sizeof *y1 * {inner});
        }}
        y0[0] = count;
    }}
"""
    return Body(rank_of(dtype) + _SORT.replace("KIND", C_TYPES[dtype]), statements, 1, 12 * n)


_SORT = """\
typedef struct {
    int64_t outer, count, inner;
} sizes;

/* Slice `a` before (-1), like (0) or after (1) slice `b`. */
static int compare(const KIND *x, sizes all, int64_t a, int64_t b) {
    for (int64_t o = 0; o < all.outer; o++)
        for (int64_t r = 0; r < all.inner; r++) {
            const uint64_t one = rank_of(x[(o * all.count + a) * all.inner + r]);
            const uint64_t two = rank_of(x[(o * all.count + b) * all.inner + r]);
            if (one != two) return one < two ? -1 : 1;
        }
    return 0;
}

/* The slices in order, by merging runs that grow from one slice on. */
static void sort(const KIND *x, sizes all, int32_t *order, int32_t *other, int64_t n) {
    for (int64_t i = 0; i < n; i++) order[i] = (int32_t)i;
    for (int64_t run = 1; run < n; run *= 2) {
        for (int64_t start = 0; start < n; start += 2 * run) {
            const int64_t middle = start + run < n ? start + run : n, stop = middle + run < n ? middle + run : n;
            int64_t a = start, b = middle;
            for (int64_t k = start; k < stop; k++) {
                const int left = a < middle && (b == stop || compare(x, all, order[a], order[b]) <= 0);
                other[k] = left ? order[a++] : order[b++];
            }
        }
        memcpy(order, other, (size_t)n * sizeof *order);
    }
}
"""
