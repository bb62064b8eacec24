/* Runs the model once on zeros, in memory of the program's own: what it needs of a system is there to print.
 *
 *     cd NAME.modelc && BUILD && ./example
 */
#include <stdio.h>
#include <stdlib.h>

#include "model.h"

/* Memory at an address that is a multiple of 64, as a program without a system would reserve it. */
static void *reserve(size_t bytes) {
    unsigned char *memory = malloc(bytes + 63);
    return memory ? memory + (64 - (uintptr_t)memory % 64) % 64 : NULL;
}

int main(void) {
    printf("memory: %zu bytes\n", modelc_memory_size());
    modelc_handle *model = modelc_init(reserve(modelc_memory_size()));
    if (!model) {
        fprintf(stderr, "%s\n", modelc_last_error());
        return 1;
    }
    int32_t input_count = modelc_input_count(model, 0), output_count = modelc_output_count(model, 0);
    const void **inputs = calloc((size_t)input_count + 1, sizeof *inputs);
    void **outputs = calloc((size_t)output_count + 1, sizeof *outputs);
    for (int32_t i = 0; i < input_count; i++) inputs[i] = calloc(modelc_input(model, 0, i)->bytes + 1, 1);
    for (int32_t i = 0; i < output_count; i++) outputs[i] = calloc(modelc_output(model, 0, i)->bytes + 1, 1);
    if (modelc_run(model, 0, inputs, outputs)) {
        fprintf(stderr, "%s\n", modelc_last_error());
        return 1;
    }
    for (int32_t i = 0; i < output_count; i++) {
        const modelc_tensor *tensor = modelc_output(model, 0, i);
        if (tensor->dtype == MODELC_FLOAT32 && tensor->bytes)
            printf("%s[0] = %g\n", tensor->name, (double)*(const float *)outputs[i]);
    }
    return 0;
}
