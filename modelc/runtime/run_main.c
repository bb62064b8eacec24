/* Runs a package from files, through the very library in it: what emulated verification executes.
 *
 *     runner PKG PREFIX inputs.bin outputs.bin [--threads N] [--variant V] [--repeat N] [--profile]
 *            [--watch ROWS FD] [--extents N...]
 *     runner PKG PREFIX --describe
 *
 * libPREFIX.so is loaded from the package; a driver that is compiled with -DAPI=PREFIX_api is linked with its static library.
 * inputs.bin is the inputs' bytes, one tensor after the other in the package's order, without header or padding;
 * outputs.bin gets the outputs in the same form, at their full size. --extents are those of all inputs, one after the other,
 * where sizes are free. Prints "open NANOSECONDS" (loading the library included), "nanoseconds BEST" (the
 * fastest run), "resident BYTES" (the most memory that the process had), a line "shape INDEX EXTENT..." for every output, where
 * the library knows, and with --profile a line "step CALLS NANOSECONDS NAME" for every step. The exit status is the
 * modelc_status, or 100 for the driver's own errors.
 * With --watch it writes what steps read and wrote to the open file FD (package/watch.py): the file ROWS has lines "STEP AFTER SPACE INDEX
 * OFFSET STRIDE BYTES CALLS" (SPACE is a letter: arena, params, input, output, random, slot, size, made: aPiorszm), each a place of
 * which so many bytes are written before (AFTER 0) or after the step, in its first CALLS calls and those whose number is a
 * power of two; before them come the number of the row and that of the call, two int64. At the end both are -1.
 * With --describe it prints a line "VARIANT input|output DTYPE EXTENT..." for every tensor, and runs nothing.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "model.h"

static const modelc_api *api;

#ifdef API
const modelc_api *API(void); /* of a static library that the driver is linked with */
#endif

static void die(const char *what, const char *detail) {
    fprintf(stderr, "%s: %s\n", what, detail);
    exit(100);
}

static void check(modelc_status status) {
    if (!status) return;
    fprintf(stderr, "%s\n", api->last_error());
    exit((int)status);
}

/* The table of functions of libPREFIX.so in the package. */
static void bind_api(const char *package, const char *prefix) {
#ifdef API
    (void)package;
    (void)prefix;
    api = API();
#else
    char path[PATH_MAX], symbol[256];
    const modelc_api *(*give)(void);
    if (snprintf(path, sizeof path, "%s/lib%s.so", package, prefix) >= (int)sizeof path) die("path too long", package);
    snprintf(symbol, sizeof symbol, "%s_api", prefix);
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) die("cannot load the library", dlerror());
    void *function = dlsym(library, symbol);
    if (!function) die("the library lacks", symbol);
    memcpy(&give, &function, sizeof give);
    api = give();
#endif
}

static modelc_handle *open_model(const char *package, int32_t threads) {
    modelc_options options = {.size = sizeof options, .threads = threads};
    modelc_handle *model = NULL;
    if (api->open) {
        check(api->open(package, &options, &model));
        return model;
    }
    void *memory = NULL;
    if (posix_memalign(&memory, 64, api->memory_size())) die("out of memory for", package);
    model = api->init(memory);
    if (!model) die("cannot make a handle", api->last_error());
    return model;
}

static void close_model(modelc_handle *model) {
    if (api->close) api->close(model); /* else it ends with its memory */
}

static int32_t number_of(const char *text) {
    char *end;
    errno = 0;
    long long number = strtoll(text, &end, 10);
    if (errno || end == text || *end || number < INT32_MIN || number > INT32_MAX) die("not a number of 32 bits", text);
    return (int32_t)number;
}

static void *buffer_for(const modelc_tensor *tensor) {
    void *memory = malloc(tensor->bytes + 1);
    if (!memory) die("out of memory for", tensor->name);
    return memory;
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return 1e9 * (double)t.tv_sec + (double)t.tv_nsec;
}

static void describe(const modelc_handle *model) {
    for (int32_t v = 0; v < api->variant_count(model); v++)
        for (int32_t kind = 0; kind < 2; kind++)
            for (int32_t i = 0; i < (kind ? api->output_count : api->input_count)(model, v); i++) {
                const modelc_tensor *tensor = (kind ? api->output : api->input)(model, v, i);
                printf("%d %s %d", (int)v, kind ? "output" : "input", (int)tensor->dtype);
                for (int32_t axis = 0; axis < tensor->rank; axis++) printf(" %lld", (long long)tensor->shape[axis]);
                printf("\n");
            }
}

/* What the last run made of each output. */
static void show_shapes(modelc_handle *model, int32_t variant) {
    for (int32_t i = 0; i < api->output_count(model, variant); i++) {
        int32_t rank = api->output(model, variant, i)->rank;
        int64_t *shape = calloc((size_t)rank + 1, sizeof *shape);
        if (!shape) die("out of memory for", "a shape");
        check(api->output_shape(model, variant, i, shape));
        printf("shape %d", (int)i);
        for (int32_t axis = 0; axis < rank; axis++) printf(" %lld", (long long)shape[axis]);
        printf("\n");
        free(shape);
    }
}

/* The shapes of all inputs, from their extents one after the other. */
static const int64_t **shapes_of(const modelc_handle *model, int32_t variant, char **extents, int32_t count) {
    const int64_t **shapes = calloc((size_t)api->input_count(model, variant) + 1, sizeof *shapes);
    if (!shapes) die("out of memory for", "shapes");
    for (int32_t i = 0; i < api->input_count(model, variant); i++) {
        int32_t rank = api->input(model, variant, i)->rank;
        int64_t *shape = calloc((size_t)rank + 1, sizeof *shape);
        if (!shape) die("out of memory for", "a shape");
        for (int32_t axis = 0; axis < rank && count > 0; axis++, count--) shape[axis] = number_of(*extents++);
        shapes[i] = shape;
    }
    if (count) die("extents are left over:", *extents);
    return shapes;
}

static size_t bytes_at(const modelc_tensor *tensor, const int64_t *shape) {
    size_t bytes = tensor->bytes;
    for (int32_t axis = 0; axis < tensor->rank && bytes; axis++) bytes /= (size_t)tensor->shape[axis];
    for (int32_t axis = 0; axis < tensor->rank && bytes; axis++) bytes *= (size_t)shape[axis];
    return bytes;
}

/* ---- watching ---- */

typedef struct watched {
    int32_t step, after, index;
    char space;
    int64_t offset, stride, bytes, most;
    int64_t calls; /* so far */
} watched;

static struct {
    watched *rows;
    int64_t count;
    FILE *to;
} watch;

static const uint8_t *place_of(const watched *row, const modelc_frame *frame) {
    const uint8_t *base = NULL;
    switch (row->space) {
    case 'a': base = frame->arena; break;
    case 'P': base = frame->params; break;
    case 'm': base = frame->made; break;
    case 'i': base = frame->inputs[row->index]; break;
    case 'o': base = frame->outputs[row->index]; break;
    case 'r': base = (const uint8_t *)frame->random; break;
    case 's': base = frame->slots[row->index]; break;
    case 'd': base = (const uint8_t *)&frame->dims[row->index]; break;
    case 'z': base = (const uint8_t *)&frame->sizes[row->index]; break;
    default: die("a row of --watch has an unknown space", &row->space);
    }
    return base + row->offset + frame->iteration * row->stride;
}

static void write_watched(const void *data, size_t bytes) {
    if (bytes && fwrite(data, 1, bytes, watch.to) != bytes) die("cannot write", "what is watched");
}

static void watcher(void *context, int32_t variant, int32_t step, int32_t after, const modelc_frame *frame) {
    (void)context;
    (void)variant;
    for (int64_t i = 0; i < watch.count; i++) {
        watched *row = &watch.rows[i];
        if (row->step != step || row->after != after) continue;
        int64_t call = row->calls++;
        if (call >= row->most && (call & (call - 1))) continue;
        int64_t head[2] = {i, call};
        write_watched(head, sizeof head);
        write_watched(place_of(row, frame), (size_t)row->bytes);
    }
}

static void read_rows(const char *path) {
    FILE *file = fopen(path, "r");
    watched row = {0};
    int64_t room = 0;
    if (!file) die("cannot read", path);
    while (fscanf(file, "%d %d %c %d %lld %lld %lld %lld", &row.step, &row.after, &row.space, &row.index, (long long *)&row.offset,
                  (long long *)&row.stride, (long long *)&row.bytes, (long long *)&row.most) == 8) {
        if (watch.count == room) {
            room = room ? 2 * room : 64;
            watch.rows = realloc(watch.rows, (size_t)room * sizeof *watch.rows);
            if (!watch.rows) die("out of memory for", path);
        }
        watch.rows[watch.count++] = row;
    }
    fclose(file);
}

/* The most that was resident at a time; 0 where /proc does not say. */
static unsigned long long most_resident(void) {
    char line[256];
    unsigned long long kib = 0;
    FILE *file = fopen("/proc/self/status", "r");
    while (file && fgets(line, sizeof line, file) && sscanf(line, "VmHWM: %llu kB", &kib) != 1) continue;
    if (file) fclose(file);
    return 1024 * kib;
}

int main(int argc, char **argv) {
    int32_t threads = 1, variant = 0, repeat = 1, profile = 0, extent_count = 0;
    char **extents = NULL;
    const char *rows = NULL;
    int32_t watched_fd = -1;
    int describes = argc == 4 && !strcmp(argv[3], "--describe");
    if (argc < 5 && !describes)
        die("usage", "runner PKG PREFIX inputs.bin outputs.bin [--threads N] [--variant V] [--repeat N] [--profile]");
    for (int i = 5; i < argc; i++) {
        int32_t *number = !strcmp(argv[i], "--threads")   ? &threads
                          : !strcmp(argv[i], "--variant") ? &variant
                          : !strcmp(argv[i], "--repeat")  ? &repeat
                                                          : NULL;
        if (!strcmp(argv[i], "--profile")) profile = 1;
        else if (!strcmp(argv[i], "--watch") && i + 2 < argc) rows = argv[++i], watched_fd = number_of(argv[++i]);
        else if (number && i + 1 < argc) *number = number_of(argv[++i]);
        else if (!strcmp(argv[i], "--extents")) extents = argv + i + 1, extent_count = argc - i - 1, i = argc;
        else die("unknown option", argv[i]);
    }
    double opening = now();
    bind_api(argv[1], argv[2]);
    modelc_handle *model = open_model(argv[1], threads);
    opening = now() - opening;
    if (describes) {
        describe(model);
        close_model(model);
        return 0;
    }
    int32_t input_count = api->input_count(model, variant), output_count = api->output_count(model, variant);
    const void **inputs = calloc((size_t)input_count + 1, sizeof *inputs);
    void **outputs = calloc((size_t)output_count + 1, sizeof *outputs);
    if (!inputs || !outputs) die("out of memory for", "the tables of buffers");

    const int64_t **shapes = extents ? shapes_of(model, variant, extents, extent_count) : NULL;
    FILE *file = fopen(argv[3], "rb");
    if (!file) die("cannot read", argv[3]);
    for (int32_t i = 0; i < input_count; i++) {
        const modelc_tensor *tensor = api->input(model, variant, i);
        void *memory = buffer_for(tensor);
        size_t bytes = shapes ? bytes_at(tensor, shapes[i]) : tensor->bytes;
        if (bytes > tensor->bytes || fread(memory, 1, bytes, file) != bytes) die("the file of inputs ends within", tensor->name);
        inputs[i] = memory;
    }
    if (fgetc(file) != EOF) die("bytes are left over in", argv[3]);
    fclose(file);
    for (int32_t i = 0; i < output_count; i++) outputs[i] = buffer_for(api->output(model, variant, i));

    if (rows) {
        read_rows(rows);
        watch.to = fdopen(watched_fd, "wb");
        if (!watch.to) die("cannot write to the file descriptor", "of --watch");
        check(api->watch(model, watcher, NULL));
    }
    double best = 1e300;
    profile = profile && api->profile_start;
    if (profile) check(api->profile_start(model));
    for (int32_t i = 0; i < repeat; i++) {
        double start = now();
        check(shapes ? api->run_shaped(model, variant, shapes, inputs, outputs) : api->run(model, variant, inputs, outputs));
        double spent = now() - start;
        if (spent < best) best = spent;
    }
    if (rows) {
        int64_t end[2] = {-1, -1};
        write_watched(end, sizeof end);
        if (fclose(watch.to)) die("cannot write", "what is watched");
    }
    file = fopen(argv[4], "wb");
    if (!file) die("cannot write", argv[4]);
    for (int32_t i = 0; i < output_count; i++) {
        const modelc_tensor *tensor = api->output(model, variant, i);
        if (fwrite(outputs[i], 1, tensor->bytes, file) != tensor->bytes) die("cannot write", argv[4]);
    }
    if (fclose(file)) die("cannot write", argv[4]);
    printf("open %.0f\nnanoseconds %.0f\nresident %llu\n", opening, best, most_resident());
    show_shapes(model, variant);
    for (int32_t i = 0; profile && i < api->step_count(model, variant); i++) {
        modelc_step_profile step;
        check(api->profile_read(model, variant, i, &step));
        printf("step %llu %llu %s\n", (unsigned long long)step.calls, (unsigned long long)step.nanoseconds, step.name);
    }
    close_model(model);
    for (int32_t i = 0; i < input_count; i++) free((void *)inputs[i]);
    for (int32_t i = 0; shapes && i < input_count; i++) free((void *)shapes[i]);
    free(shapes);
    for (int32_t i = 0; i < output_count; i++) free(outputs[i]);
    free(inputs);
    free(outputs);
    return 0;
}
