"""Opaque Blocks that compute with real numbers, as C functions: regions of images, determinants (opaque.py)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

from modelc.codegen.opaque_body import C_TYPES, Body, Tensor


def roi_align(attrs: Mapping[str, Any], inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Body:
    """Iterations are channels of regions."""
    (dtype, (_, channels, rows, columns)), *_ = inputs
    _, _, height, width = attrs["shape"]
    kind, shift = C_TYPES[dtype], 0.5 if attrs["half_pixel"] else 0.0
    least = "" if attrs["half_pixel"] else "            if (extent[d] < 1) extent[d] = 1;\n"
    samples = str(attrs["samples"]) if attrs["samples"] > 0 else "(int64_t)ceil(bin[d])"
    combine = "greatest(image, all, y, x, &any)" if attrs["max"] else "all + sample(image, y, x)"
    end = "any ? all : 0" if attrs["max"] else "all / (double)(count[0] * count[1])"
    helpers = _SAMPLE.replace("KIND", kind).replace("ROWS", str(rows)).replace("COLUMNS", str(columns))
    helpers = "#include <math.h>\n\n" + helpers
    statements = f"""\
    for (int64_t i = begin; i < end; i++) {{
        const {kind} *roi = x1 + i / {channels} * 4;
        const {kind} *image = x0 + ((int64_t)x2[i / {channels}] * {channels} + i % {channels}) * {rows * columns};
        {kind} *y0_i = y0 + i * {height * width};
        double start[2], extent[2], bin[2];
        int64_t count[2];
        for (int d = 0; d < 2; d++) {{
            start[d] = (double)roi[1 - d] * {attrs["scale"]!r} - {shift};
            extent[d] = (double)roi[3 - d] * {attrs["scale"]!r} - {shift} - start[d];
{least}            bin[d] = extent[d] / (d ? {width} : {height});
            count[d] = isfinite(extent[d]) ? {samples} : 0;
        }}
        if (count[0] <= 0 || count[1] <= 0) {{
            memset(y0_i, 0, {height * width} * sizeof *y0_i);
            continue;
        }}
        for (int64_t h = 0; h < {height}; h++)
            for (int64_t w = 0; w < {width}; w++) {{
                double all = 0;
                int any = 0;
                (void)any;
                for (int64_t p = 0; p < count[0]; p++)
                    for (int64_t q = 0; q < count[1]; q++) {{
                        const double y = start[0] + bin[0] * ((double)h + ((double)p + 0.5) / (double)count[0]);
                        const double x = start[1] + bin[1] * ((double)w + ((double)q + 0.5) / (double)count[1]);
                        all = {combine};
                    }}
                y0_i[h * {width} + w] = ({kind})({end});
            }}
    }}
"""
    return Body(helpers, statements, prod(attrs["shape"][:2]))


_SAMPLE = """\
/* The four elements around a place, each times its weight; nothing outside of the image. */
static inline void corners(const KIND *image, double y, double x, double found[4]) {
    if (!(y >= -1 && y <= ROWS && x >= -1 && x <= COLUMNS)) {
        found[0] = found[1] = found[2] = found[3] = 0;
        return;
    }
    y = y < 0 ? 0 : y > ROWS - 1 ? ROWS - 1 : y;
    x = x < 0 ? 0 : x > COLUMNS - 1 ? COLUMNS - 1 : x;
    const int64_t top = (int64_t)y, left = (int64_t)x;
    const int64_t below = top + 1 < ROWS ? top + 1 : top, right = left + 1 < COLUMNS ? left + 1 : left;
    const double v = y - (double)top, u = x - (double)left;
    found[0] = (1 - v) * (1 - u) * (double)image[top * COLUMNS + left];
    found[1] = (1 - v) * u * (double)image[top * COLUMNS + right];
    found[2] = v * (1 - u) * (double)image[below * COLUMNS + left];
    found[3] = v * u * (double)image[below * COLUMNS + right];
}

static inline double sample(const KIND *image, double y, double x) {
    double four[4];
    corners(image, y, x, four);
    return four[0] + four[1] + four[2] + four[3];
}

static inline double greatest(const KIND *image, double most, double y, double x, int *any) {
    double four[4];
    corners(image, y, x, four);
    for (int k = 0; k < 4; k++) {
        if (!*any || four[k] > most) most = four[k];
        *any = 1;
    }
    return most;
}
"""


def det(attrs: Mapping[str, Any], inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Body:
    """Elimination with partial pivoting, in doubles; iterations are matrices."""
    ((dtype, shape),) = inputs
    n = shape[-1]
    statements = f"""\
    double *a = (double *)scratch;
    for (int64_t i = begin; i < end; i++) {{
        double product = 1;
        for (int64_t k = 0; k < {n * n}; k++) a[k] = (double)x0[i * {n * n} + k];
        for (int64_t c = 0; c < {n}; c++) {{
            int64_t pivot = c;
            for (int64_t r = c + 1; r < {n}; r++)
                if (fabs(a[r * {n} + c]) > fabs(a[pivot * {n} + c])) pivot = r;
            const double most = a[pivot * {n} + c];
            product *= pivot == c ? most : -most;
            if (most == 0) break;
            for (int64_t k = c; pivot != c && k < {n}; k++) {{
                const double kept = a[c * {n} + k];
                a[c * {n} + k] = a[pivot * {n} + k];
                a[pivot * {n} + k] = kept;
            }}
            for (int64_t r = c + 1; r < {n}; r++) {{
                const double factor = a[r * {n} + c] / most;
                for (int64_t k = c + 1; k < {n}; k++) a[r * {n} + k] -= factor * a[c * {n} + k];
            }}
        }}
        y0[i] = ({C_TYPES[dtype]})product;
    }}
"""
    return Body("#include <math.h>\n", statements, prod(shape[:-2]), 8 * n * n)
