/* Free sizes: what a run's sizes are by the shapes of its inputs, and whether these fit each other. */
#include "modelc_runtime.h"

/* The extents of an input in a run. */
static void expected_shape(const mc_variant *v, const int64_t *dims, int32_t index, int64_t *shape) {
    for (int32_t axis = 0; axis < v->inputs[index].rank; axis++) shape[axis] = v->inputs[index].shape[axis];
    v->shape(dims, 0, index, shape);
}

static int say(char *sentence, size_t size, const char *format, ...) {
    if (sentence) {
        va_list arguments;
        va_start(arguments, format);
        mc_write(sentence, size, format, arguments);
        va_end(arguments);
    }
    return 0;
}

int mc_dims_of(const mc_variant *v, const int64_t *const *shapes, int64_t *dims, char *sentence, size_t size) {
    for (int32_t d = 0; d < v->size_count; d++) {
        const mc_size *s = &v->sizes[d];
        const int64_t given = shapes ? shapes[s->input][s->axis] : s->most * s->unit;
        dims[d] = given / s->unit;
        if (given % s->unit || dims[d] < s->least || dims[d] > s->most) {
            if (!sentence) return 0;
            size_t n = mc_append(sentence, size, 0, "input '%s' has %lld along dimension %d, which is '%s': expected %lld to %lld",
                                 v->inputs[s->input].name, (long long)given, (int)s->axis, s->name,
                                 (long long)(s->least * s->unit), (long long)(s->most * s->unit));
            if (s->unit > 1) mc_append(sentence, size, n, " in steps of %lld", (long long)s->unit);
            return 0;
        }
    }
    for (int32_t k = 0; shapes && k < v->input_count; k++) {
        int64_t shape[MC_MOST_RANK * 2];
        expected_shape(v, dims, k, shape);
        for (int32_t axis = 0; axis < v->inputs[k].rank; axis++)
            if (shapes[k][axis] != shape[axis])
                return say(sentence, size, "input '%s' has %lld along dimension %d: expected %lld, by the model and the other inputs",
                           v->inputs[k].name, (long long)shapes[k][axis], (int)axis, (long long)shape[axis]);
    }
    return 1;
}
