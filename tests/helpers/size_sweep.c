/* Runs a package for any size at one size after the other, then in the opposite order, with every input and output in
 * memory of just its bytes: at the beginning, and at the end, of pages beyond which nothing can be touched, so that what
 * reads or writes outside ends the process. It is linked with the package's static library, under a sanitizer.
 *
 *     size_sweep PKG records.bin outputs.bin
 *
 * A record is int64 numbers: 0, the extents of all inputs and of all outputs, then the bytes of the inputs, filled up to
 * eight; or 1 and the extents of the inputs alone, which the package is to refuse without a look at any data. Records end
 * with -1. Prints a line "STATUS SENTENCE" for each; outputs.bin gets the outputs of those that run, in their order.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "model.h"

enum { MOST = 64, MOST_RECORDS = 4096 };

const modelc_api *API(void);
static const modelc_api *api;
static modelc_handle *model;
static int32_t inputs, outputs;

static void die(const char *what) {
    fprintf(stderr, "%s\n", what);
    exit(100);
}

/* What a record says, as places in the file; the bytes of each tensor. */
typedef struct record {
    int64_t refused;
    const int64_t *shapes[MOST];
    const int64_t *expected[MOST];
    const uint8_t *data[MOST];
    size_t given[MOST], taken[MOST];
    uint8_t *results[MOST]; /* of the first run */
} record;

typedef struct block {
    uint8_t *pages;
    size_t size;
    uint8_t *data;
} block;

static block guarded(size_t bytes, int at_end) {
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), size = (bytes + page - 1) / page * page;
    uint8_t *memory = mmap(NULL, size + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED || (size && mprotect(memory + page, size, PROT_READ | PROT_WRITE))) die("no memory");
    return (block){memory, size + 2 * page, memory + page + (at_end ? size - bytes : 0)};
}

static size_t bytes_at(const modelc_tensor *tensor, const int64_t *shape) {
    size_t bytes = tensor->bytes;
    for (int32_t axis = 0; axis < tensor->rank && bytes; axis++) bytes /= (size_t)tensor->shape[axis];
    for (int32_t axis = 0; axis < tensor->rank; axis++) bytes *= (size_t)shape[axis];
    return bytes;
}

/* The record at a place of the file, and where the next one is; NULL after the last. */
static const int64_t *next_record(const int64_t *at, record *r) {
    r->refused = *at++;
    if (r->refused < 0) return NULL;
    for (int32_t i = 0; i < inputs; at += api->input(model, 0, i++)->rank) r->shapes[i] = at;
    for (int32_t i = 0; i < outputs && !r->refused; at += api->output(model, 0, i++)->rank) r->expected[i] = at;
    const uint8_t *data = (const uint8_t *)at;
    for (int32_t i = 0; i < inputs && !r->refused; i++) {
        r->given[i] = bytes_at(api->input(model, 0, i), r->shapes[i]);
        r->data[i] = data;
        data += (r->given[i] + 7) / 8 * 8;
    }
    for (int32_t i = 0; i < outputs && !r->refused; i++) r->taken[i] = bytes_at(api->output(model, 0, i), r->expected[i]);
    return (const int64_t *)data;
}

static void run_at_a_side(record *r, int at_end) {
    block given[MOST], taken[MOST];
    const void *in[MOST];
    void *out[MOST];
    int32_t variant;
    for (int32_t i = 0; i < inputs; i++) {
        given[i] = guarded(r->given[i], at_end);
        in[i] = memcpy(given[i].data, r->data[i], r->given[i]);
    }
    for (int32_t i = 0; i < outputs; i++) {
        taken[i] = guarded(r->taken[i], at_end);
        out[i] = memset(taken[i].data, 0xA5, r->taken[i]);
    }
    if (api->fit(model, r->shapes, &variant) || variant) die(api->last_error());
    if (api->run_shaped(model, variant, r->shapes, in, out)) die(api->last_error());
    for (int32_t i = 0; i < outputs; i++) {
        int64_t shape[MOST];
        if (api->output_shape(model, variant, i, shape)) die(api->last_error());
        if (memcmp(shape, r->expected[i], sizeof *shape * (size_t)api->output(model, 0, i)->rank)) die("another output shape");
        if (!r->results[i]) r->results[i] = memcpy(malloc(r->taken[i] + 1), out[i], r->taken[i]);
        if (memcmp(r->results[i], out[i], r->taken[i])) die("the bits depend on what ran before, or on where buffers lie");
        munmap(taken[i].pages, taken[i].size);
    }
    for (int32_t i = 0; i < inputs; i++) munmap(given[i].pages, given[i].size);
}

static void refuse(record *r) {
    const void *in[MOST];
    void *out[MOST];
    const block nothing = guarded(0, 0);
    int32_t variant = -1;
    for (int32_t i = 0; i < MOST; i++) in[i] = out[i] = nothing.data;
    if (api->fit(model, r->shapes, &variant) != MODELC_BAD_ARGUMENT) die("a bad size fits");
    char sentence[1024];
    snprintf(sentence, sizeof sentence, "%s", api->last_error());
    if (api->run_shaped(model, 0, r->shapes, in, out) != MODELC_BAD_ARGUMENT) die("a bad size runs");
    if (!*sentence || strcmp(sentence, api->last_error())) die("fit and run say different things");
    munmap(nothing.pages, nothing.size);
}

int main(int argc, char **argv) {
    if (argc != 4) die("usage: size_sweep PKG records.bin outputs.bin");
    api = API();
    const modelc_options options = {.size = sizeof options, .threads = 2};
    if (api->open(argv[1], &options, &model)) die(api->last_error());
    inputs = api->input_count(model, 0);
    outputs = api->output_count(model, 0);
    if (inputs > MOST || outputs > MOST) die("too many inputs or outputs");

    FILE *file = fopen(argv[2], "rb");
    if (!file || fseek(file, 0, SEEK_END)) die("cannot read the records");
    const long size = ftell(file);
    int64_t *text = malloc((size_t)size + 8);
    rewind(file);
    if (!text || fread(text, 1, (size_t)size, file) != (size_t)size) die("cannot read the records");
    fclose(file);

    static record records[MOST_RECORDS];
    int count = 0;
    for (const int64_t *at = text; (at = next_record(at, &records[count]));) if (++count == MOST_RECORDS) die("too many records");
    for (int turn = 0; turn < 2; turn++)
        for (int k = 0; k < count; k++) {
            record *r = &records[turn ? count - 1 - k : k];
            if (r->refused) refuse(r);
            else for (int side = 0; side < 2; side++) run_at_a_side(r, side);
            if (!turn) printf("%d %s\n", (int)r->refused, r->refused ? api->last_error() : "");
        }
    FILE *out = fopen(argv[3], "wb");
    if (!out) die("cannot write the outputs");
    for (int k = 0; k < count; k++)
        for (int32_t i = 0; i < outputs && !records[k].refused; i++) {
            if (fwrite(records[k].results[i], 1, records[k].taken[i], out) != records[k].taken[i]) die("cannot write the outputs");
            free(records[k].results[i]);
        }
    if (fclose(out)) die("cannot write the outputs");
    free(text);
    api->close(model);
    return 0;
}
