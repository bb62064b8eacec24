/* Padding: which variant takes inputs of given shapes, and the copies of them that it is given. */
#include <string.h>

#include "modelc_runtime.h"

/* The padded dimension that hangs on this axis of an input or output; -1: none. */
static int32_t dimension_at(int output, int32_t tensor, int32_t axis) {
    for (int32_t i = 0; i < mc_the_model.along_count; i++) {
        const mc_along *one = &mc_the_model.along[i];
        if (one->output == output && one->tensor == tensor && one->axis == axis) return one->dim;
    }
    return -1;
}

int mc_fits(const mc_variant *v, const int64_t *const *shapes) {
    for (int32_t k = 0; k < v->input_count; k++)
        for (int32_t axis = 0; axis < v->inputs[k].rank; axis++) {
            int64_t given = shapes[k][axis], most = v->inputs[k].shape[axis];
            int32_t dim = dimension_at(0, k, axis);
            if (dim < 0 ? given != most : given < 1 || given > most || given != mc_extent_of(v, shapes, dim)) return 0;
        }
    return 1;
}

static int is_exact(const modelc_handle *handle, int32_t variant, const int64_t *const *shapes) {
    const mc_variant *v = &mc_the_model.variants[variant];
    int64_t dims[MC_MOST_SIZES];
    if (v->size_count) return !mc_dims_of(handle, variant, shapes, dims, NULL, 0);
    for (int32_t k = 0; k < v->input_count; k++)
        for (int32_t axis = 0; axis < v->inputs[k].rank; axis++)
            if (shapes[k][axis] != v->inputs[k].shape[axis]) return 0;
    return 1;
}

int64_t mc_extent_of(const mc_variant *v, const int64_t *const *shapes, int32_t dim) {
    for (int32_t i = 0; i < mc_the_model.along_count; i++) {
        const mc_along *one = &mc_the_model.along[i];
        if (!one->output && one->dim == dim)
            return shapes ? shapes[one->tensor][one->axis] : v->inputs[one->tensor].shape[one->axis];
    }
    return 0;
}

static uint64_t input_bytes(const mc_variant *v) {
    uint64_t bytes = 0;
    for (int32_t k = 0; k < v->input_count; k++) bytes += v->inputs[k].bytes;
    return bytes;
}

int32_t mc_variant_for(const modelc_handle *handle, const int64_t *const *shapes) {
    int32_t best = -1;
    for (int32_t n = 0; n < mc_the_model.variant_count; n++) {
        const mc_variant *v = &mc_the_model.variants[n];
        if (is_exact(handle, n, shapes)) return n;
        if (mc_fits(v, shapes) && (best < 0 || input_bytes(v) < input_bytes(&mc_the_model.variants[best]))) best = n;
    }
    return best;
}

/* ---- what is there, in words ---- */

static size_t say_shapes(char *sentence, size_t size, size_t n, const mc_variant *v, const int64_t *const *shapes) {
    for (int32_t k = 0; k < v->input_count; k++) {
        n = mc_append(sentence, size, n, "%s%s [", k ? ", " : "", v->inputs[k].name);
        for (int32_t axis = 0; axis < v->inputs[k].rank; axis++)
            n = mc_append(sentence, size, n, axis ? ", %lld" : "%lld",
                          (long long)(shapes ? shapes[k] : v->inputs[k].shape)[axis]);
        n = mc_append(sentence, size, n, "]");
    }
    return n;
}

modelc_status mc_no_variant(const modelc_handle *handle, const int64_t *const *shapes) {
    int64_t dims[MC_MOST_SIZES];
    char *sentence = mc_message();
    const size_t size = MC_MESSAGE_BYTES;
    const mc_variant *only = &mc_the_model.variants[0];
    if (mc_the_model.variant_count == 1 && only->size_count) {
        const modelc_status status = mc_dims_of(handle, 0, shapes, dims, sentence, size);
        if (status) return status;
    }
    size_t n = mc_append(sentence, size, 0, "the model was given ");
    n = say_shapes(sentence, size, n, &mc_the_model.variants[0], shapes);
    n = mc_append(sentence, size, n, "; it was compiled for ");
    for (int32_t v = 0; v < mc_the_model.variant_count; v++) {
        if (v) n = mc_append(sentence, size, n, "; ");
        n = say_shapes(sentence, size, n, &mc_the_model.variants[v], NULL);
    }
    for (int32_t d = 0; d < mc_the_model.dim_count; d++)
        n = mc_append(sentence, size, n, "%s%s", d ? ", " : "; inputs may be shorter, all of them alike, along ",
                      mc_the_model.dims[d]);
    return MODELC_BAD_ARGUMENT;
}

/* ---- copies ---- */

static void fill(uint8_t *memory, size_t bytes, uint64_t bits, size_t element) {
    if (!bits) {
        memset(memory, 0, bytes);
        return;
    }
    size_t done = element < bytes ? element : bytes;
    memcpy(memory, &bits, done); /* machines that packages are made for are little-endian */
    for (; done < bytes; done *= 2) memcpy(memory + done, memory, done < bytes - done ? done : bytes - done);
}

/* The array `from` into the corner of `to`, whose extents differ along the first `axes` dimensions at most. */
static void place(uint8_t *to, const int64_t *to_shape, size_t to_bytes, const uint8_t *from, const int64_t *from_shape,
                  size_t from_bytes, int32_t axes) {
    if (!from_bytes) return;
    if (!axes) {
        memcpy(to, from, from_bytes);
        return;
    }
    to_bytes /= (size_t)*to_shape;
    from_bytes /= (size_t)*from_shape;
    for (int64_t i = 0; i < *from_shape; i++)
        place(to + (size_t)i * to_bytes, to_shape + 1, to_bytes, from + (size_t)i * from_bytes, from_shape + 1, from_bytes,
              axes - 1);
}

void mc_fill_up(const mc_variant *v, const int64_t *const *shapes, const void *const *inputs, uint8_t *memory,
                const void **filled) {
    for (int32_t k = 0; k < v->input_count; k++) {
        const modelc_tensor *tensor = &v->inputs[k];
        size_t element = mc_the_model.fills[k].bytes, bytes = element;
        int32_t axes = 0;
        for (int32_t axis = 0; axis < tensor->rank; axis++) {
            bytes *= (size_t)shapes[k][axis];
            if (shapes[k][axis] != tensor->shape[axis]) axes = axis + 1;
        }
        filled[k] = inputs[k];
        if (!axes) continue;
        fill(memory, tensor->bytes, mc_the_model.fills[k].bits, element);
        place(memory, tensor->shape, tensor->bytes, inputs[k], shapes[k], bytes, axes);
        filled[k] = memory;
        memory += (tensor->bytes + 63) / 64 * 64;
    }
}
