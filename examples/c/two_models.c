/* Two models in one program, which need no file where they run: each computes on the same numbers, and what it gives is
 * printed as a checksum (FNV-1a).
 *
 *     modelc compile yunet.onnx --target raspberry-pi-5 --prefix face --emit a --embed-params -o face.modelc
 *     modelc compile ocr.onnx --target raspberry-pi-5 --prefix ocr --emit a --embed-params -o ocr.modelc
 *     aarch64-linux-gnu-gcc -O2 -static -I face.modelc -I ocr.modelc two_models.c face.modelc/libface.a \
 *         ocr.modelc/libocr.a -lm -pthread -o two_models
 *     qemu-aarch64-static ./two_models
 */
#include <stdio.h>
#include <stdlib.h>

#include "face.h"
#include "ocr.h"

static uint64_t checksum(const uint8_t *data, size_t bytes) {
    uint64_t sum = 0xcbf29ce484222325u;
    for (size_t i = 0; i < bytes; i++) sum = (sum ^ data[i]) * 0x100000001b3u;
    return sum;
}

/* float32: -1 to 1; what is of another dtype: zeros. */
static void *numbers_for(const modelc_tensor *tensor) {
    float *numbers = calloc(1, tensor->bytes + 1);
    for (size_t i = 0; numbers && tensor->dtype == MODELC_FLOAT32 && i < tensor->bytes / sizeof *numbers; i++)
        numbers[i] = (float)(i * 7919 % 1000) / 500 - 1;
    return numbers;
}

static int run(const char *name, const modelc_api *api) {
    modelc_options options = {.size = sizeof options, .threads = 1};
    modelc_handle *model;
    if (api->open(NULL, &options, &model)) return fprintf(stderr, "%s: %s\n", name, api->last_error());
    int32_t given = api->input_count(model, 0), taken = api->output_count(model, 0);
    const void **inputs = calloc((size_t)given + 1, sizeof *inputs);
    void **outputs = calloc((size_t)taken + 1, sizeof *outputs);
    for (int32_t i = 0; i < given; i++) inputs[i] = numbers_for(api->input(model, 0, i));
    for (int32_t i = 0; i < taken; i++) outputs[i] = calloc(1, api->output(model, 0, i)->bytes + 1);
    if (api->run(model, 0, inputs, outputs)) return fprintf(stderr, "%s: %s\n", name, api->last_error());
    for (int32_t i = 0; i < taken; i++) {
        const modelc_tensor *tensor = api->output(model, 0, i);
        printf("%s %s %016llx\n", name, tensor->name, (unsigned long long)checksum(outputs[i], tensor->bytes));
    }
    api->close(model);
    return 0;
}

int main(void) { return run("face", face_api()) || run("ocr", ocr_api()); }
