/* What test_embedding.py builds with the runtime's sources and a sanitizer: `driver PACKAGE CONTAINER`. Prints what is
 * refused, and "ok" at the end. CONTAINER is a file that it writes. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tiny.h"

enum { ROWS = 40, COLUMNS = 64, THREADS = 4, RUNS = 20, OFFSET = 4096 + 128, BEHIND = 64 };

#define CHECK(condition)                                                                   \
    do {                                                                                   \
        if (!(condition)) {                                                                \
            fprintf(stderr, "line %d: %s: %s\n", __LINE__, #condition, tiny_last_error()); \
            exit(1);                                                                       \
        }                                                                                  \
    } while (0)

static float x[ROWS * COLUMNS], expected[ROWS * COLUMNS];

static void run(modelc_handle *handle, float *y) {
    static const uint8_t mask[5] = {1, 0, 1, 1, 0};
    int64_t total = 0;
    const void *inputs[] = {x, mask};
    void *outputs[] = {y, &total};
    CHECK(tiny_run(handle, 0, inputs, outputs) == MODELC_OK && total == 3);
}

static void check(modelc_handle *handle) {
    for (int i = 0; i < RUNS; i++) {
        float y[ROWS * COLUMNS] = {0};
        run(handle, y);
        CHECK(!memcmp(y, expected, sizeof y));
    }
    tiny_close(handle);
}

static modelc_handle *opened; /* NULL where nothing was */

static void refused(modelc_status status) {
    CHECK(status && !opened);
    printf("%d %s\n", (int)status, tiny_last_error());
}

/* ---- parameters ---- */

static uint8_t *params, *shifted; /* of a size each that a sanitizer knows */
static size_t bytes;

static void read_params(const char *package) {
    char path[4096];
    snprintf(path, sizeof path, "%s/params.bin", package);
    FILE *file = fopen(path, "rb");
    CHECK(file && !fseek(file, 0, SEEK_END));
    bytes = (size_t)ftell(file);
    rewind(file);
    CHECK(!posix_memalign((void **)&params, 64, bytes) && !posix_memalign((void **)&shifted, 64, bytes + 4));
    CHECK(fread(params, 1, bytes, file) == bytes && !fclose(file));
    memcpy(shifted + 4, params, bytes);
}

static void from_memory(void) {
    const modelc_options options = {.size = sizeof options, .threads = 2, .check = 1};
    modelc_handle *handle;
    CHECK(!tiny_open_memory(params, bytes, &options, &handle));
    check(handle);
    refused(tiny_open_memory(params, bytes - 1, NULL, &opened));
    refused(tiny_open_memory(params, bytes + 1, NULL, &opened));
    refused(tiny_open_memory(shifted + 4, bytes, NULL, &opened));
    refused(tiny_open_memory(NULL, bytes, NULL, &opened));
    refused(tiny_open_memory(params, bytes, NULL, NULL));
    params[bytes - 1] ^= 1;
    refused(tiny_open_memory(params, bytes, &options, &opened));
    params[bytes - 1] ^= 1;
}

static void from_descriptor(const char *container) {
    static const uint8_t zeros[OFFSET];
    const modelc_options options = {.size = sizeof options, .threads = 1, .check = 1};
    int fd = open(container, O_RDWR | O_CREAT | O_TRUNC, 0600), ends[2];
    modelc_handle *handle;
    CHECK(fd >= 0 && write(fd, zeros, OFFSET) == OFFSET && write(fd, params, bytes) == (ssize_t)bytes);
    CHECK(write(fd, zeros, BEHIND) == BEHIND && lseek(fd, 7, SEEK_SET) == 7);
    CHECK(!tiny_open_fd(fd, OFFSET, bytes, &options, &handle) && lseek(fd, 0, SEEK_CUR) == 7);
    refused(tiny_open_fd(fd, 100, bytes, NULL, &opened));
    refused(tiny_open_fd(fd, OFFSET, 0, NULL, &opened));
    refused(tiny_open_fd(fd, 5000, bytes, NULL, &opened));
    refused(tiny_open_fd(fd, UINT64_MAX, 0, NULL, &opened));
    close(fd);
    check(handle);
    refused(tiny_open_fd(-1, 0, 0, NULL, &opened));
    CHECK(!pipe(ends));
    modelc_status status = tiny_open_fd(ends[0], 0, 0, NULL, &opened);
    const char *behind = strstr(tiny_last_error(), " is of");
    CHECK(status && !opened && behind);
    printf("%d descriptor PIPE%s\n", (int)status, behind);
    close(ends[0]);
    close(ends[1]);
}

/* ---- threads ---- */

typedef struct share {
    modelc_task task;
    void *arguments;
    int32_t index;
} share;

static void *compute(void *of) {
    const share *s = of;
    s->task(s->arguments, s->index);
    return NULL;
}

static void by_threads(void *context, modelc_task task, void *arguments, int32_t count) {
    pthread_t threads[THREADS];
    share shares[THREADS];
    CHECK(count <= THREADS && count > 0);
    for (int32_t i = 0; i < count; i++) {
        shares[i] = (share){task, arguments, i};
        CHECK(!pthread_create(&threads[i], NULL, compute, &shares[i]));
    }
    for (int32_t i = 0; i < count; i++) pthread_join(threads[i], NULL);
    ++*(int *)context;
}

static void backwards(void *context, modelc_task task, void *arguments, int32_t count) {
    for (int32_t i = count; i-- > 0;) task(arguments, i);
    ++*(int *)context;
}

static void the_last_alone(void *context, modelc_task task, void *arguments, int32_t count) {
    task(arguments, count - 1);
    ++*(int *)context;
}

static void never(void *context, modelc_task task, void *arguments, int32_t count) { ++*(int *)context; }

static void wrongly(void *context, modelc_task task, void *arguments, int32_t count) {
    for (int32_t i = -3; i < count + 3; i++) task(arguments, i / 2 * 2);
    task(arguments, INT32_MAX);
    task(arguments, INT32_MIN);
    ++*(int *)context;
}

static void on_threads_of_ours(const char *package) {
    static const modelc_parallel_for ways[] = {by_threads, backwards, the_last_alone, never, wrongly};
    for (size_t way = 0; way < sizeof ways / sizeof *ways; way++)
        for (int32_t threads = 1; threads <= THREADS; threads++) {
            int calls = 0;
            modelc_options options = {.size = sizeof options, .threads = threads, .parallel_for = ways[way], .context = &calls};
            modelc_handle *handle;
            CHECK(!tiny_open(package, &options, &handle) && tiny_thread_count(handle) == threads);
            check(handle);
            CHECK(calls == (threads > 1 ? 3 * RUNS : 0)); /* three steps of four are worth sharing */
        }
}

int main(int argc, char **argv) {
    modelc_handle *handle;
    CHECK(argc == 3);
    for (int i = 0; i < ROWS * COLUMNS; i++) x[i] = (float)(i * 7919 % 1000) / 500 - 1;
    CHECK(!tiny_open(argv[1], NULL, &handle));
    run(handle, expected);
    tiny_close(handle);
    read_params(argv[1]);
    from_memory();
    from_descriptor(argv[2]);
    on_threads_of_ours(argv[1]);
    refused(tiny_time_limit(NULL, 1));
    refused(tiny_seed(NULL, 1));
    free(params);
    free(shifted);
    puts("ok");
    return 0;
}
