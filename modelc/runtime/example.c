/* Runs the model once and prints what goes in and what comes out.
 *
 *     cd NAME.modelc && BUILD && ./example . [FILE...]
 *
 * The files hold the bytes of one tensor each: first those of the inputs, in the model's order, which are read (zeros
 * where none is given), then those of the outputs, which are written.
 */
#include <stdio.h>
#include <stdlib.h>

#include "model.h"

static const char *dtype_name(int32_t dtype) {
    static const char *names[] = {"?",          "float32",        "float64",       "float16",     "bfloat16",
                                  "int8",       "int16",          "int32",         "int64",       "uint8",
                                  "uint16",     "uint32",         "uint64",        "bool",        "float8_e4m3fn",
                                  "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu",
                                  "float4_e2m1fn", "int4",        "uint4",         "int2",        "uint2"};
    return dtype > 0 && dtype <= MODELC_UINT2 ? names[dtype] : names[0];
}

static void *describe_and_allocate(const char *kind, const modelc_tensor *tensor) {
    printf("%s %s: %s[", kind, tensor->name, dtype_name(tensor->dtype));
    for (int32_t i = 0; i < tensor->rank; i++) printf(i ? ", %lld" : "%lld", (long long)tensor->shape[i]);
    printf("]\n");
    return calloc(tensor->bytes + 1, 1);
}

/* Prints the shape that an output had in the run where it is not the one that it was allocated for. */
static int describe_actual(modelc_handle *model, const modelc_tensor *tensor, int32_t index) {
    int64_t *shape = calloc((size_t)tensor->rank + 1, sizeof *shape);
    int failed = !shape || modelc_output_shape(model, 0, index, shape);
    int other = 0;
    for (int32_t i = 0; !failed && i < tensor->rank; i++) other |= shape[i] != tensor->shape[i];
    if (other) {
        printf("%s has the shape [", tensor->name);
        for (int32_t i = 0; i < tensor->rank; i++) printf(i ? ", %lld" : "%lld", (long long)shape[i]);
        printf("]\n");
    }
    free(shape);
    return failed;
}

/* Reads or writes all bytes of a tensor; not 0 and a message if that fails. */
static int transfer(const char *path, const char *mode, const modelc_tensor *tensor, void *data) {
    FILE *file = fopen(path, mode);
    size_t done = !file ? 0 : *mode == 'r' ? fread(data, 1, tensor->bytes, file) : fwrite(data, 1, tensor->bytes, file);
    int failed = !file || done != tensor->bytes || (*mode == 'r' && fgetc(file) != EOF);
    if (file && fclose(file)) failed = 1;
    if (failed) fprintf(stderr, "%s: not the %zu bytes of %s\n", path, tensor->bytes, tensor->name);
    return failed;
}

int main(int argc, char **argv) {
    modelc_handle *model;
    char **files = argv + 2;
    int32_t file_count = argc > 2 ? argc - 2 : 0;
    if (modelc_open(argc > 1 ? argv[1] : ".", NULL, &model)) {
        fprintf(stderr, "%s\n", modelc_last_error());
        return 1;
    }
    int32_t input_count = modelc_input_count(model, 0), output_count = modelc_output_count(model, 0);
    void **inputs = calloc((size_t)input_count + 1, sizeof *inputs);
    void **outputs = calloc((size_t)output_count + 1, sizeof *outputs);
    for (int32_t i = 0; i < input_count; i++) inputs[i] = describe_and_allocate("input", modelc_input(model, 0, i));
    for (int32_t i = 0; i < output_count; i++) outputs[i] = describe_and_allocate("output", modelc_output(model, 0, i));

    int failed = 0;
    for (int32_t i = 0; !failed && i < input_count && i < file_count; i++)
        failed = transfer(files[i], "rb", modelc_input(model, 0, i), inputs[i]);
    if (!failed && modelc_run(model, 0, (const void *const *)inputs, outputs)) {
        fprintf(stderr, "%s\n", modelc_last_error());
        failed = 1;
    }
    for (int32_t i = 0; !failed && i < output_count; i++) {
        const modelc_tensor *tensor = modelc_output(model, 0, i);
        const float *values = outputs[i];
        failed = describe_actual(model, tensor, i);
        if (tensor->dtype == MODELC_FLOAT32 && tensor->bytes) printf("%s[0] = %g\n", tensor->name, (double)values[0]);
        if (!failed && input_count + i < file_count) failed = transfer(files[input_count + i], "wb", tensor, outputs[i]);
    }
    for (int32_t i = 0; i < input_count; i++) free(inputs[i]);
    for (int32_t i = 0; i < output_count; i++) free(outputs[i]);
    free(inputs);
    free(outputs);
    modelc_close(model);
    return failed;
}
