/* Free sizes: what a run's sizes are by the shapes of its inputs, and whether these fit each other. */
#include <string.h>

#include "modelc_runtime.h"

/* The extents of an input, or of an output, in a run. */
static void expected_shape(const mc_variant *v, const int64_t *dims, int is_output, int32_t index, int64_t *shape) {
    const modelc_tensor *tensor = is_output ? &v->outputs[index] : &v->inputs[index];
    for (int32_t axis = 0; axis < tensor->rank; axis++) shape[axis] = tensor->shape[axis];
    v->shape(dims, is_output, index, shape);
}

static modelc_status say(char *sentence, size_t size, modelc_status status, const char *format, ...) {
    if (sentence) {
        va_list arguments;
        va_start(arguments, format);
        mc_write(sentence, size, format, arguments);
        va_end(arguments);
    }
    return status;
}

modelc_status mc_dims_of(const modelc_handle *handle, int32_t variant, const int64_t *const *shapes, int64_t *dims,
                         char *sentence, size_t size) {
    const mc_variant *v = &mc_the_model.variants[variant];
    for (int32_t d = 0; d < v->size_count; d++) {
        const mc_size *s = &v->sizes[d];
        if (s->input == MC_FOUND) {
            dims[d] = s->most;
            continue;
        }
        if (s->input == MC_LENGTH) {
            dims[d] = atomic_load_explicit(&handle->kept[variant].lengths[d], memory_order_relaxed);
            if (dims[d] > s->most)
                return say(sentence, size, MODELC_FULL,
                           "the cache is full: '%s' is %lld, and a run is possible up to %lld; reset() empties it", s->name,
                           (long long)dims[d], (long long)s->most);
            continue;
        }
        const int64_t given = shapes ? shapes[s->input][s->axis] : s->most * s->unit;
        dims[d] = given / s->unit;
        if (given % s->unit || dims[d] < s->least || dims[d] > s->most) {
            char steps[48] = "";
            if (s->unit > 1) mc_append(steps, sizeof steps, 0, " in steps of %lld", (long long)s->unit);
            return say(sentence, size, MODELC_BAD_ARGUMENT,
                       "input '%s' has %lld along dimension %d, which is '%s': expected %lld to %lld%s",
                       v->inputs[s->input].name, (long long)given, (int)s->axis, s->name, (long long)(s->least * s->unit),
                       (long long)(s->most * s->unit), steps);
        }
    }
    for (int32_t k = 0; shapes && k < v->input_count; k++) {
        int64_t shape[MC_MOST_RANK * 2];
        expected_shape(v, dims, 0, k, shape);
        for (int32_t axis = 0; axis < v->inputs[k].rank; axis++)
            if (shapes[k][axis] != shape[axis])
                return say(sentence, size, MODELC_BAD_ARGUMENT,
                           "input '%s' has %lld along dimension %d: expected %lld, by the model and the other inputs%s",
                           v->inputs[k].name, (long long)shapes[k][axis], (int)axis, (long long)shape[axis],
                           v->cache_bytes ? ", and what the cache holds" : "");
    }
    return MODELC_OK;
}

void mc_close_gaps(const mc_variant *v, const int64_t *dims, const int64_t *counts, void *const *outputs) {
    int64_t shape[MC_MOST_RANK * 2];
    for (int32_t i = 0; i < v->extent_count; i++) {
        const mc_extent *e = &v->extents[i];
        const modelc_tensor *tensor = &v->outputs[e->output];
        uint8_t *data = outputs[e->output];
        size_t inner = tensor->bytes, outer = 1;
        if (!inner) continue;
        for (int32_t axis = 0; axis < tensor->rank; axis++) inner /= (size_t)tensor->shape[axis]; /* of one element */
        expected_shape(v, dims, 1, e->output, shape);
        for (int32_t k = 0; k < i; k++)
            if (v->extents[k].output == e->output) shape[v->extents[k].axis] = counts[k]; /* closed before */
        for (int32_t axis = 0; axis < e->axis; axis++) outer *= (size_t)shape[axis];
        for (int32_t axis = e->axis + 1; axis < tensor->rank; axis++) inner *= (size_t)shape[axis];
        const size_t row = inner * (size_t)shape[e->axis], kept = inner * (size_t)counts[i];
        for (size_t o = 1; o < outer && kept < row; o++) {
            const size_t apart = o * (row - kept); /* as far as memcpy may copy at once */
            for (size_t done = 0; done < kept; done += apart)
                memcpy(data + o * kept + done, data + o * row + done, apart < kept - done ? apart : kept - done);
        }
    }
}
