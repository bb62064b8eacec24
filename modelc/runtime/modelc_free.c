/* Free sizes: what a run's sizes are by the shapes of its inputs, and whether these fit each other. */
#include "modelc_runtime.h"

/* The extents of an input in a run. */
static void expected_shape(const mc_variant *v, const int64_t *dims, int32_t index, int64_t *shape) {
    for (int32_t axis = 0; axis < v->inputs[index].rank; axis++) shape[axis] = v->inputs[index].shape[axis];
    v->shape(dims, 0, index, shape);
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
        if (s->input < 0) {
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
        expected_shape(v, dims, k, shape);
        for (int32_t axis = 0; axis < v->inputs[k].rank; axis++)
            if (shapes[k][axis] != shape[axis])
                return say(sentence, size, MODELC_BAD_ARGUMENT,
                           "input '%s' has %lld along dimension %d: expected %lld, by the model and the other inputs%s",
                           v->inputs[k].name, (long long)shapes[k][axis], (int)axis, (long long)shape[axis],
                           v->cache_bytes ? ", and what the cache holds" : "");
    }
    return MODELC_OK;
}
