/* Runs a package on one record of inputs after the other, with every input and output against pages that cannot be
 * touched: once begin to page, once end to page. One access outside ends the process with a signal.
 *
 *     guarded_run PKG inputs.bin outputs.bin RECORDS THREADS
 *
 * Prints a line "STATUS SENTENCE" for each record; outputs.bin gets the outputs of the records of status 0.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "model.h"

enum { MOST = 64 };

static void die(const char *what) {
    fprintf(stderr, "%s\n", what);
    exit(100);
}

static void *symbol(void *library, const char *name) {
    void *found = dlsym(library, name);
    if (!found) die(name);
    return found;
}

/* `bytes` of memory that begin, or end, at a page without access; with HEAP, a block between a sanitizer's red zones. */
static void *guarded(size_t bytes, int at_end) {
#ifdef HEAP
    (void)at_end;
    return malloc(bytes);
#else
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), size = (bytes + page - 1) / page * page;
    uint8_t *memory = mmap(NULL, size + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED || (size && mprotect(memory + page, size, PROT_READ | PROT_WRITE))) die("no memory");
    return memory + page + (at_end ? size - bytes : 0);
#endif
}

int main(int argc, char **argv) {
    if (argc != 7) die("usage: guarded_run PKG inputs.bin outputs.bin RECORDS THREADS PREFIX");
    char path[4096], name[256];
    snprintf(path, sizeof path, "%s/lib%s.so", argv[1], argv[6]);
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) die(dlerror());
    snprintf(name, sizeof name, "%s_api", argv[6]);
    const modelc_api *(*give)(void) = symbol(library, name);
    const modelc_api *api = give();

    modelc_handle *model;
    const modelc_options options = {.size = sizeof options, .threads = atoi(argv[5])};
    if (api->open(argv[1], &options, &model)) die(api->last_error());
    const int32_t inputs = api->input_count(model, 0), outputs = api->output_count(model, 0);
    void *given[2][MOST], *taken[2][MOST];
    if (inputs > MOST || outputs > MOST) die("too many inputs or outputs");
    for (int side = 0; side < 2; side++) {
        for (int32_t i = 0; i < inputs; i++) given[side][i] = guarded(api->input(model, 0, i)->bytes, side);
        for (int32_t i = 0; i < outputs; i++) taken[side][i] = guarded(api->output(model, 0, i)->bytes, side);
    }
    FILE *in = fopen(argv[2], "rb"), *out = fopen(argv[3], "wb");
    if (!in || !out) die("cannot open the files of data");
    for (int record = atoi(argv[4]); record > 0; record--) {
        for (int32_t i = 0; i < inputs; i++) {
            const size_t bytes = api->input(model, 0, i)->bytes;
            if (fread(given[0][i], 1, bytes, in) != bytes) die("the file of inputs ends early");
            memcpy(given[1][i], given[0][i], bytes);
        }
        modelc_status status[2];
        for (int side = 0; side < 2; side++) status[side] = api->run(model, 0, (const void *const *)given[side], taken[side]);
        if (status[0] != status[1]) die("the result depends on where the buffers lie");
        printf("%d %s\n", (int)status[0], status[0] ? api->last_error() : "");
        for (int32_t i = 0; !status[0] && i < outputs; i++) {
            const size_t bytes = api->output(model, 0, i)->bytes;
            if (memcmp(taken[0][i], taken[1][i], bytes)) die("the outputs depend on where the buffers lie");
            if (fwrite(taken[0][i], 1, bytes, out) != bytes) die("cannot write the outputs");
        }
    }
    if (fclose(out)) die("cannot write the outputs");
    api->close(model);
    return 0;
}
