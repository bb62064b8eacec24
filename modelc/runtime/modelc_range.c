/* Data that addresses are computed from, checked before a kernel reads it: whether all of it lies in a range. */
#include "modelc_runtime.h"

enum { LANES = 8 };

/* Users' buffers have any alignment. */
typedef int64_t __attribute__((aligned(1), may_alias)) any_int64;
typedef int32_t __attribute__((aligned(1), may_alias)) any_int32;

/* The sign of (x - low) | (high - x) says whether x is outside, also where a difference wraps: then the other does not.
 * It is gathered over all elements without a branch, LANES at a time, as vectors. */
#define DEFINE_OUTSIDE(NAME, TYPE)                                                                          \
    static int NAME(const TYPE *x, int64_t count, int64_t step, int64_t low, int64_t high) {                \
        uint64_t signs[LANES] = {0}, rest = 0;                                                              \
        int64_t i = 0;                                                                                      \
        for (; step == 1 && i + LANES <= count; i += LANES)                                                 \
            for (int k = 0; k < LANES; k++)                                                                 \
                signs[k] |= ((uint64_t)(int64_t)x[i + k] - (uint64_t)low) | ((uint64_t)high - (uint64_t)(int64_t)x[i + k]); \
        for (; i < count; i++) {                                                                            \
            const uint64_t v = (uint64_t)(int64_t)x[i * step];                                              \
            rest |= (v - (uint64_t)low) | ((uint64_t)high - v);                                             \
        }                                                                                                   \
        for (int k = 0; k < LANES; k++) rest |= signs[k];                                                   \
        return (int)(rest >> 63);                                                                           \
    }
DEFINE_OUTSIDE(outside_int64, any_int64)
DEFINE_OUTSIDE(outside_int32, any_int32)

static int outside(const mc_range *range, const uint8_t *at, int64_t count, int64_t step) {
    return range->dtype == MODELC_INT64
               ? outside_int64((const any_int64 *)at, count, step, range->low, range->high)
               : outside_int32((const any_int32 *)at, count, step, range->low, range->high);
}

/* Names the first element of a line that is outside; `line` counts lines in row-major order. */
static void describe(const mc_range *range, const uint8_t *at, int64_t line, int64_t count, int64_t step,
                     char *sentence, size_t size) {
    const size_t width = range->dtype == MODELC_INT64 ? 8 : 4;
    int64_t i = 0, position[MC_MOST_RANK];
    while (!outside(range, at + i * step * (int64_t)width, 1, 1)) i++;
    const uint8_t *found = at + i * step * (int64_t)width;
    const int64_t number = width == 8 ? *(const any_int64 *)found : *(const any_int32 *)found;
    int64_t flat = line * count + i;
    for (int32_t d = range->rank; d-- > 0; flat /= range->shape[d]) position[d] = flat % range->shape[d];
    size_t n = mc_append(sentence, size, 0, "%s: '%s' is %lld", range->operator_name, range->value,
                         (long long)number);
    for (int32_t d = 0; d < range->rank; d++)
        n = mc_append(sentence, size, n, "%s%lld", d ? ", " : " at [", (long long)position[d]);
    if (range->column >= 0) n = mc_append(sentence, size, n, "%s%d", range->rank ? ", " : " at [", (int)range->column);
    if (range->rank || range->column >= 0) n = mc_append(sentence, size, n, "]");
    mc_append(sentence, size, n, "; expected a number from %lld to %lld", (long long)range->low,
              (long long)range->high);
}

int mc_in_range(const mc_range *range, const void *data, char *sentence, size_t size) {
    const int64_t width = range->dtype == MODELC_INT64 ? 8 : 4;
    int64_t place[MC_MOST_RANK] = {0}, count = 1, step = 1, offset = 0;
    int32_t dims = range->rank; /* the last of them go along a line of elements that are evenly apart */
    if (dims) step = range->strides[dims - 1];
    while (dims && range->strides[dims - 1] == step * count) count *= range->shape[--dims];
    for (int32_t d = 0; d < range->rank; d++)
        if (!range->shape[d]) return 1;
    for (int64_t line = 0;; line++) {
        const uint8_t *at = (const uint8_t *)data + offset * width;
        if (outside(range, at, count, step)) {
            describe(range, at, line, count, step, sentence, size);
            return 0;
        }
        int32_t d = dims;
        while (d-- > 0) {
            offset += range->strides[d];
            if (++place[d] < range->shape[d]) break;
            offset -= place[d] * range->strides[d];
            place[d] = 0;
        }
        if (d < 0) return 1;
    }
}
