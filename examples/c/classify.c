/* The class of what a file of float32 numbers shows: the place of the largest output, and that output.
 *
 *     modelc compile MODEL.onnx --prefix net --emit a -o net.modelc
 *     cc -O2 -I net.modelc classify.c net.modelc/libnet.a -lm -pthread -o classify
 *     ./classify net.modelc input.bin
 */
#include <stdio.h>
#include <stdlib.h>

#include "net.h"

static int failed(const char *what) {
    fprintf(stderr, "%s\n", what);
    return 1;
}

int main(int argc, char **argv) {
    modelc_handle *model;
    if (argc != 3) return failed("usage: classify PACKAGE INPUT");
    if (net_open(argv[1], NULL, &model)) return failed(net_last_error());
    size_t wanted = net_input(model, 0, 0)->bytes, bytes = net_output(model, 0, 0)->bytes;
    float *x = malloc(wanted), *y = malloc(bytes);
    FILE *file = fopen(argv[2], "rb");
    if (!x || !y || !file || fread(x, 1, wanted, file) != wanted) return failed("the input cannot be read, or is too short");
    fclose(file);
    const void *inputs[] = {x};
    void *outputs[] = {y};
    if (net_run(model, 0, inputs, outputs)) return failed(net_last_error());
    size_t best = 0;
    for (size_t i = 1; i < bytes / sizeof *y; i++)
        if (y[i] > y[best]) best = i;
    printf("%zu %.6f\n", best, (double)y[best]);
    net_close(model);
    free(x);
    free(y);
    return 0;
}
