/* Runs a package from files, through the very libmodel.so in it: what emulated verification executes.
 *
 *     runner PKG inputs.bin outputs.bin [--threads N] [--variant V] [--repeat N] [--profile]
 *            [--watch ROWS FD] [--extents N...]
 *     runner PKG --describe
 *
 * inputs.bin is the inputs' bytes, one tensor after the other in the package's order, without header or padding;
 * outputs.bin gets the outputs in the same form, at their full size. --extents are those of all inputs, one after the other:
 * inputs that are shorter are filled up. Prints "open NANOSECONDS" (loading the library included), "nanoseconds BEST" (the
 * fastest run), "resident BYTES" (the most memory that the process had), a line "shape INDEX EXTENT..." for every output, where
 * the library knows, and with --profile a line "step CALLS NANOSECONDS NAME" for every step. The exit status is the
 * modelc_status, or 100 for the driver's own errors.
 * With --watch it writes what steps read and wrote to the open file FD (package/watch.py): the file ROWS has lines "STEP AFTER SPACE INDEX
 * OFFSET STRIDE BYTES CALLS" (SPACE is a letter: arena, params, input, output, random, slot, size: aPiorsz), each a place of
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

static modelc_status (*api_open)(const char *, const modelc_options *, modelc_handle **);
static void (*api_close)(modelc_handle *);
static const char *(*api_last_error)(void);
static int32_t (*api_variant_count)(const modelc_handle *);
static int32_t (*api_input_count)(const modelc_handle *, int32_t);
static int32_t (*api_output_count)(const modelc_handle *, int32_t);
static const modelc_tensor *(*api_input)(const modelc_handle *, int32_t, int32_t);
static const modelc_tensor *(*api_output)(const modelc_handle *, int32_t, int32_t);
static modelc_status (*api_run)(modelc_handle *, int32_t, const void *const *, void *const *);
/* NULL in older packages */
static modelc_status (*api_run_shaped)(modelc_handle *, int32_t, const int64_t *const *, const void *const *, void *const *);
static modelc_status (*api_output_shape)(modelc_handle *, int32_t, int32_t, int64_t *);
static modelc_status (*api_watch)(modelc_handle *, modelc_watcher, void *);
static modelc_status (*api_profile_start)(modelc_handle *);
static int32_t (*api_step_count)(const modelc_handle *, int32_t);
static modelc_status (*api_profile_read)(modelc_handle *, int32_t, int32_t, modelc_step_profile *);

static void die(const char *what, const char *detail) {
    fprintf(stderr, "%s: %s\n", what, detail);
    exit(100);
}

static void check(modelc_status status) {
    if (!status) return;
    fprintf(stderr, "%s\n", api_last_error());
    exit((int)status);
}

static void bind_api(const char *package) {
    static const struct {
        const char *name;
        void *pointer;
    } table[] = {{"modelc_open", &api_open},
                 {"modelc_close", &api_close},
                 {"modelc_last_error", &api_last_error},
                 {"modelc_variant_count", &api_variant_count},
                 {"modelc_input_count", &api_input_count},
                 {"modelc_output_count", &api_output_count},
                 {"modelc_input", &api_input},
                 {"modelc_output", &api_output},
                 {"modelc_run", &api_run},
                 {"modelc_run_shaped", &api_run_shaped},
                 {"modelc_output_shape", &api_output_shape},
                 {"modelc_watch", &api_watch},
                 {"modelc_profile_start", &api_profile_start},
                 {"modelc_step_count", &api_step_count},
                 {"modelc_profile_read", &api_profile_read}};
    char path[PATH_MAX];
    if (snprintf(path, sizeof path, "%s/libmodel.so", package) >= (int)sizeof path) die("path too long", package);
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) die("cannot load the library", dlerror());
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        void *function = dlsym(library, table[i].name);
        int later = table[i].pointer == (void *)&api_run_shaped || table[i].pointer == (void *)&api_output_shape ||
                    table[i].pointer == (void *)&api_watch;
        if (!function && !later) die("the library lacks", table[i].name);
        memcpy(table[i].pointer, &function, sizeof function);
    }
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
    for (int32_t v = 0; v < api_variant_count(model); v++)
        for (int32_t kind = 0; kind < 2; kind++)
            for (int32_t i = 0; i < (kind ? api_output_count : api_input_count)(model, v); i++) {
                const modelc_tensor *tensor = (kind ? api_output : api_input)(model, v, i);
                printf("%d %s %d", (int)v, kind ? "output" : "input", (int)tensor->dtype);
                for (int32_t axis = 0; axis < tensor->rank; axis++) printf(" %lld", (long long)tensor->shape[axis]);
                printf("\n");
            }
}

/* What the last run made of each output. */
static void show_shapes(modelc_handle *model, int32_t variant) {
    for (int32_t i = 0; i < api_output_count(model, variant); i++) {
        int32_t rank = api_output(model, variant, i)->rank;
        int64_t *shape = calloc((size_t)rank + 1, sizeof *shape);
        if (!shape) die("out of memory for", "a shape");
        check(api_output_shape(model, variant, i, shape));
        printf("shape %d", (int)i);
        for (int32_t axis = 0; axis < rank; axis++) printf(" %lld", (long long)shape[axis]);
        printf("\n");
        free(shape);
    }
}

/* The shapes of all inputs, from their extents one after the other. */
static const int64_t **shapes_of(const modelc_handle *model, int32_t variant, char **extents, int32_t count) {
    const int64_t **shapes = calloc((size_t)api_input_count(model, variant) + 1, sizeof *shapes);
    if (!shapes) die("out of memory for", "shapes");
    for (int32_t i = 0; i < api_input_count(model, variant); i++) {
        int32_t rank = api_input(model, variant, i)->rank;
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
    case 'i': base = frame->inputs[row->index]; break;
    case 'o': base = frame->outputs[row->index]; break;
    case 'r': base = (const uint8_t *)frame->random; break;
    case 's': base = frame->slots[row->index]; break;
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
    modelc_options options = {.threads = 1};
    int32_t variant = 0, repeat = 1, profile = 0, extent_count = 0;
    char **extents = NULL;
    const char *rows = NULL;
    int32_t watched_fd = -1;
    int describes = argc == 3 && !strcmp(argv[2], "--describe");
    if (argc < 4 && !describes)
        die("usage", "runner PKG inputs.bin outputs.bin [--threads N] [--variant V] [--repeat N] [--profile]");
    for (int i = 4; i < argc; i++) {
        int32_t *number = !strcmp(argv[i], "--threads")   ? &options.threads
                          : !strcmp(argv[i], "--variant") ? &variant
                          : !strcmp(argv[i], "--repeat")  ? &repeat
                                                          : NULL;
        if (!strcmp(argv[i], "--profile")) profile = 1;
        else if (!strcmp(argv[i], "--watch") && i + 2 < argc) rows = argv[++i], watched_fd = number_of(argv[++i]);
        else if (number && i + 1 < argc) *number = number_of(argv[++i]);
        else if (!strcmp(argv[i], "--extents")) extents = argv + i + 1, extent_count = argc - i - 1, i = argc;
        else die("unknown option", argv[i]);
    }
    modelc_handle *model;
    double opening = now();
    bind_api(argv[1]);
    check(api_open(argv[1], &options, &model));
    opening = now() - opening;
    if (describes) {
        describe(model);
        api_close(model);
        return 0;
    }
    int32_t input_count = api_input_count(model, variant), output_count = api_output_count(model, variant);
    const void **inputs = calloc((size_t)input_count + 1, sizeof *inputs);
    void **outputs = calloc((size_t)output_count + 1, sizeof *outputs);
    if (!inputs || !outputs) die("out of memory for", "the tables of buffers");

    const int64_t **shapes = extents ? shapes_of(model, variant, extents, extent_count) : NULL;
    if (shapes && !api_run_shaped) die("the library lacks", "modelc_run_shaped");
    FILE *file = fopen(argv[2], "rb");
    if (!file) die("cannot read", argv[2]);
    for (int32_t i = 0; i < input_count; i++) {
        const modelc_tensor *tensor = api_input(model, variant, i);
        void *memory = buffer_for(tensor);
        size_t bytes = shapes ? bytes_at(tensor, shapes[i]) : tensor->bytes;
        if (bytes > tensor->bytes || fread(memory, 1, bytes, file) != bytes) die("the file of inputs ends within", tensor->name);
        inputs[i] = memory;
    }
    if (fgetc(file) != EOF) die("bytes are left over in", argv[2]);
    fclose(file);
    for (int32_t i = 0; i < output_count; i++) outputs[i] = buffer_for(api_output(model, variant, i));

    if (rows) {
        if (!api_watch) die("the library lacks", "modelc_watch");
        read_rows(rows);
        watch.to = fdopen(watched_fd, "wb");
        if (!watch.to) die("cannot write to the file descriptor", "of --watch");
        check(api_watch(model, watcher, NULL));
    }
    double best = 1e300;
    if (profile) check(api_profile_start(model));
    for (int32_t i = 0; i < repeat; i++) {
        double start = now();
        check(shapes ? api_run_shaped(model, variant, shapes, inputs, outputs) : api_run(model, variant, inputs, outputs));
        double spent = now() - start;
        if (spent < best) best = spent;
    }
    if (rows) {
        int64_t end[2] = {-1, -1};
        write_watched(end, sizeof end);
        if (fclose(watch.to)) die("cannot write", "what is watched");
    }
    file = fopen(argv[3], "wb");
    if (!file) die("cannot write", argv[3]);
    for (int32_t i = 0; i < output_count; i++) {
        const modelc_tensor *tensor = api_output(model, variant, i);
        if (fwrite(outputs[i], 1, tensor->bytes, file) != tensor->bytes) die("cannot write", argv[3]);
    }
    if (fclose(file)) die("cannot write", argv[3]);
    printf("open %.0f\nnanoseconds %.0f\nresident %llu\n", opening, best, most_resident());
    if (api_output_shape) show_shapes(model, variant);
    for (int32_t i = 0; profile && i < api_step_count(model, variant); i++) {
        modelc_step_profile step;
        check(api_profile_read(model, variant, i, &step));
        printf("step %llu %llu %s\n", (unsigned long long)step.calls, (unsigned long long)step.nanoseconds, step.name);
    }
    api_close(model);
    for (int32_t i = 0; i < input_count; i++) free((void *)inputs[i]);
    for (int32_t i = 0; shapes && i < input_count; i++) free((void *)shapes[i]);
    free(shapes);
    for (int32_t i = 0; i < output_count; i++) free(outputs[i]);
    free(inputs);
    free(outputs);
    return 0;
}
