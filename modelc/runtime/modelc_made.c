/* Constants that are made of the parameters when a package is opened: sums of weights, which take several times the bytes of
 * these, and numbers of few bits as floats. All handles of a process have them in one place. */
#include <pthread.h>

#include "modelc_runtime.h"

enum { BLOCK = 1 << 9 }; /* elements of a row that are added at once: those of every part lie in the caches */

static struct {
    pthread_mutex_t lock;
    uint8_t *memory;
    int32_t handles;
} made = {.lock = PTHREAD_MUTEX_INITIALIZER};

static int32_t blocks_of(const mc_made *constant) { return (int32_t)((constant->inner + BLOCK - 1) / BLOCK); }

/* Elements [first, first + count) of each sum in row `outer`: their parts in order, in double, rounded once. */
static void add_up(const mc_made *constant, const float *parts, float *sums, int64_t outer, int64_t first, int64_t count) {
    const int64_t inner = constant->inner;
    parts += outer * constant->columns * inner + first;
    sums += outer * constant->rows * inner + first;
    for (int32_t t = 0; t < constant->rows; t++) {
        const double *factors = constant->matrix + (int64_t)t * constant->columns;
        double total[BLOCK];
        int begun = 0;
        for (int32_t k = 0; k < constant->columns; k++) {
            const double factor = factors[k];
            const float *part = parts + k * inner;
            if (factor == 0) continue;
            if (begun)
                for (int64_t i = 0; i < count; i++) total[i] += factor * part[i];
            else
                for (int64_t i = 0; i < count; i++) total[i] = factor * part[i];
            begun = 1;
        }
        for (int64_t i = 0; i < count; i++) sums[t * inner + i] = begun ? (float)total[i] : 0.0f;
    }
}

static float half(uint16_t bits) {
    const uint32_t sign = (uint32_t)(bits & 0x8000) << 16, exponent = bits >> 10 & 31, fraction = bits & 0x3ff;
    union {
        uint32_t bits;
        float real;
    } wide;
    if (!exponent) return (sign ? -1.0f : 1.0f) * (float)fraction * 0x1p-24f;
    wide.bits = sign | (exponent + 112) << 23 | fraction << 13; /* constants are finite */
    return wide.real;
}

/* Elements [first, first + count) of row `outer`: numbers times their factors. */
static void widen(const mc_made *constant, const uint8_t *params, float *wide, int64_t outer, int64_t first, int64_t count) {
    const int32_t last = constant->rank - 1;
    const int64_t at = outer * constant->inner + first, by = constant->strides[last];
    const float *factor = (const float *)(const void *)(params + constant->factors);
    const uint8_t *numbers = params + constant->source;
    for (int32_t d = last - 1; d >= 0; d--) {
        factor += outer % constant->extents[d] * constant->strides[d];
        outer /= constant->extents[d];
    }
    factor += first * by;
    wide += at;
    switch (constant->dtype) {
    case MODELC_INT8:
        for (int64_t i = 0; i < count; i++) wide[i] = (float)((const int8_t *)numbers)[at + i] * factor[i * by];
        break;
    case MODELC_UINT8:
        for (int64_t i = 0; i < count; i++) wide[i] = (float)numbers[at + i] * factor[i * by];
        break;
    case MODELC_INT16:
        for (int64_t i = 0; i < count; i++)
            wide[i] = (float)((const int16_t *)(const void *)numbers)[at + i] * factor[i * by];
        break;
    default: /* MODELC_FLOAT16 */
        for (int64_t i = 0; i < count; i++)
            wide[i] = half(((const uint16_t *)(const void *)numbers)[at + i]) * factor[i * by];
    }
}

/* A step over blocks of rows of the constant whose number is the frame's iteration. */
static void make(const mc_frame *frame, uint8_t *scratch, int32_t begin, int32_t end) {
    const mc_made *constant = &mc_the_model.made[frame->iteration];
    const uint8_t *from = constant->widened ? frame->made : frame->params;
    const float *parts = (const float *)(const void *)(from + constant->source);
    float *floats = (float *)(void *)((uint8_t *)(uintptr_t)frame->made + constant->offset);
    (void)scratch;
    for (int32_t i = begin; i < end; i++) {
        const int64_t first = (int64_t)(i % blocks_of(constant)) * BLOCK, left = constant->inner - first;
        const int64_t count = left < BLOCK ? left : BLOCK;
        if (constant->matrix) add_up(constant, parts, floats, i / blocks_of(constant), first, count);
        else widen(constant, frame->params, floats, i / blocks_of(constant), first, count);
    }
}

modelc_status mc_made_open(modelc_handle *handle) {
    modelc_status status = MODELC_OK;
    if (!mc_the_model.made_count) return status;
    pthread_mutex_lock(&made.lock);
    if (!made.memory && mc_the_model.made_bytes <= SIZE_MAX / 2)
        made.memory = mc_map_zeroed((size_t)mc_the_model.made_bytes);
    if (!made.memory) {
        status = mc_fail(MODELC_NO_MEMORY, "cannot reserve %llu bytes for the constants that are made of the parameters",
                         (unsigned long long)mc_the_model.made_bytes);
    } else {
        mc_frame frame = {.params = handle->params, .made = made.memory};
        if (!made.handles++) {
            const uint64_t saved = mc_float_enter(mc_the_model.flush_denormals); /* as in a run, whatever the program has */
            mc_lock(handle);
            for (int32_t i = 0; i < mc_the_model.made_count; i++) {
                const mc_step step = {.run = make, .extent = (int32_t)mc_the_model.made[i].outer * blocks_of(&mc_the_model.made[i])};
                frame.iteration = i;
                mc_run_shared(handle, &step, &frame);
            }
            mc_unlock(handle);
            mc_float_leave(saved);
        }
        handle->made = made.memory;
    }
    pthread_mutex_unlock(&made.lock);
    return status;
}

void mc_made_close(modelc_handle *handle) {
    if (!handle->made) return;
    pthread_mutex_lock(&made.lock);
    if (!--made.handles) {
        mc_unmap(made.memory, (size_t)mc_the_model.made_bytes);
        made.memory = NULL;
    }
    pthread_mutex_unlock(&made.lock);
}
