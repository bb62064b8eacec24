/* Runs a model in ONNX Runtime on one thread, through its C interface: run_onnxruntime LIBRARY MODEL INPUTS DATA OUTPUTS
   RUNS. INPUTS says what the model takes, a line each: name, element type in ONNX's numbers, dimensions; DATA has their
   bytes, one after the other. The first run's outputs are written to OUTPUTS. There is no header of ONNX Runtime in the
   packages that have its library: what is used of its table of functions, whose order stays, is declared here. */

#include <dlfcn.h>
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 64, MOST_RANK = 16, VERSION = 16 };
enum { BYTES_PER_ELEMENT_TYPES = 17 };

typedef struct status status;
typedef struct {
    const void *const *(*get)(uint32_t version);
    const char *(*version)(void);
} base;

/* Where functions are in the table. */
enum {
    ERROR_MESSAGE = 2,
    CREATE_ENVIRONMENT = 3,
    CREATE_SESSION = 7,
    RUN = 9,
    CREATE_SESSION_OPTIONS = 10,
    SET_THREADS_WITHIN = 24,
    SET_THREADS_BETWEEN = 25,
    COUNT_OUTPUTS = 31,
    OUTPUT_NAME = 37,
    TENSOR_OF_DATA = 49,
    DATA_OF_TENSOR = 51,
    ELEMENT_TYPE = 60,
    ELEMENTS = 64,
    TYPE_AND_SHAPE = 65,
    MEMORY_OF_CPU = 69,
    DEFAULT_ALLOCATOR = 78,
    RELEASE_SESSION = 95,
    RELEASE_VALUE = 96,
};

static const void *const *functions;
static const size_t bytes_of[BYTES_PER_ELEMENT_TYPES] = {0, 4, 1, 1, 2, 2, 4, 8, 0, 1, 2, 8, 4, 8, 8, 16, 2};

static void fail(const char *what, const char *why) {
    fprintf(stderr, "%s: %s\n", what, why);
    exit(1);
}

static void check(status *said) {
    if (said) fail("ONNX Runtime", ((const char *(*)(const status *))functions[ERROR_MESSAGE])(said));
}

#define CALL(number, types, ...) check(((status * (*) types) functions[number])(__VA_ARGS__))

static char *read_all(const char *path, size_t *size) {
    FILE *file = fopen(path, "rb");
    if (!file || fseek(file, 0, SEEK_END)) fail(path, "cannot be read");
    *size = (size_t)ftell(file);
    rewind(file);
    char *data = malloc(*size + 1);
    if (!data || fread(data, 1, *size, file) != *size) fail(path, "cannot be read");
    data[*size] = 0;
    fclose(file);
    return data;
}

int main(int count, char **arguments) {
    if (count != 7) fail(arguments[0], "expected LIBRARY MODEL INPUTS DATA OUTPUTS RUNS");
    void *library = dlopen(arguments[1], RTLD_NOW);
    if (!library) fail(arguments[1], dlerror());
    const base *(*get)(void) = (const base *(*)(void))dlsym(library, "OrtGetApiBase");
    if (!get) fail(arguments[1], "is no library of ONNX Runtime");
    functions = get()->get(VERSION);
    if (!functions) fail(arguments[1], "does not have the interface that is asked for");

    void *environment, *options, *session, *allocator, *memory;
    CALL(CREATE_ENVIRONMENT, (int, const char *, void **), 3, "count", &environment);
    CALL(CREATE_SESSION_OPTIONS, (void **), &options);
    CALL(SET_THREADS_WITHIN, (void *, int), options, 1);
    CALL(SET_THREADS_BETWEEN, (void *, int), options, 1);
    CALL(CREATE_SESSION, (void *, const char *, void *, void **), environment, arguments[2], options, &session);
    CALL(DEFAULT_ALLOCATOR, (void **), &allocator);
    CALL(MEMORY_OF_CPU, (int, int, void **), 0, 0, &memory);

    size_t size, given = 0, wanted;
    char *data = read_all(arguments[4], &size), *said = read_all(arguments[3], &size);
    const char *names[MOST], *results[MOST];
    void *inputs[MOST], *outputs[MOST];
    for (char *rest, *line = strtok_r(said, "\n", &rest); line && given < MOST; line = strtok_r(NULL, "\n", &rest)) {
        char *more;
        int64_t shape[MOST_RANK];
        size_t rank = 0, elements = 1;
        names[given] = strtok_r(line, "\t", &more);
        int type = atoi(strtok_r(NULL, "\t", &more));
        for (char *extent; rank < MOST_RANK && (extent = strtok_r(NULL, "\t", &more)); rank++)
            elements *= (size_t)(shape[rank] = atoll(extent));
        size_t bytes = elements * bytes_of[type];
        CALL(TENSOR_OF_DATA, (void *, void *, size_t, const int64_t *, size_t, int, void **), memory, data, bytes, shape,
             rank, type, &inputs[given++]);
        data += bytes;
    }
    CALL(COUNT_OUTPUTS, (void *, size_t *), session, &wanted);
    if (wanted > MOST) fail(arguments[2], "has too many outputs");
    for (size_t k = 0; k < wanted; k++)
        CALL(OUTPUT_NAME, (void *, size_t, void *, const char **), session, k, allocator, &results[k]);

    for (int run = 0; run < atoi(arguments[6]); run++) {
        memset(outputs, 0, sizeof outputs);
        CALL(RUN, (void *, void *, const char **, void **, size_t, const char **, size_t, void **), session, NULL, names,
             inputs, given, results, wanted, outputs);
        FILE *file = run ? NULL : fopen(arguments[5], "wb");
        for (size_t k = 0; k < wanted; k++) {
            if (file) {
                void *shape, *made;
                int type;
                size_t elements;
                CALL(TYPE_AND_SHAPE, (void *, void **), outputs[k], &shape);
                CALL(ELEMENT_TYPE, (void *, int *), shape, &type);
                CALL(ELEMENTS, (void *, size_t *), shape, &elements);
                CALL(DATA_OF_TENSOR, (void *, void **), outputs[k], &made);
                fwrite(made, bytes_of[type], elements, file);
            }
            ((void (*)(void *))functions[RELEASE_VALUE])(outputs[k]);
        }
        if (file && fclose(file)) fail(arguments[5], "cannot be written");
    }
    printf("%s\n", get()->version());
    ((void (*)(void *))functions[RELEASE_SESSION])(session);
    return 0;
}
