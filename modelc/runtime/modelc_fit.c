/* Which variant takes inputs of given shapes. */
#include "modelc_runtime.h"

int mc_fits(const modelc_handle *handle, int32_t variant, const int64_t *const *shapes) {
    const mc_variant *v = &mc_the_model.variants[variant];
    int64_t dims[MC_MOST_SIZES];
    if (v->size_count) return !mc_dims_of(handle, variant, shapes, dims, NULL, 0);
    for (int32_t k = 0; k < v->input_count; k++)
        for (int32_t axis = 0; axis < v->inputs[k].rank; axis++)
            if (shapes[k][axis] != v->inputs[k].shape[axis]) return 0;
    return 1;
}

int32_t mc_variant_for(const modelc_handle *handle, const int64_t *const *shapes) {
    for (int32_t n = 0; n < mc_the_model.variant_count; n++)
        if (mc_fits(handle, n, shapes)) return n;
    return -1;
}

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
    if (mc_the_model.variant_count == 1 && mc_the_model.variants[0].size_count) {
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
    return MODELC_BAD_ARGUMENT;
}
