/* What test_runtime.py builds with the runtime's sources and a sanitizer: `driver PACKAGE`. Prints "ok" at the end. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tiny.h"

enum { ROWS = 40, COLUMNS = 64, THREADS = 4, RUNS = 50 };

#define CHECK(condition)                                                                     \
    do {                                                                                     \
        if (!(condition)) {                                                                  \
            fprintf(stderr, "line %d: %s: %s\n", __LINE__, #condition, tiny_last_error()); \
            exit(1);                                                                         \
        }                                                                                    \
    } while (0)

static atomic_long allocations;

#ifdef COUNT_ALLOCATIONS
extern void *__libc_malloc(size_t);
extern void *__libc_calloc(size_t, size_t);
extern void *__libc_realloc(void *, size_t);
extern void *__libc_memalign(size_t, size_t);
void *malloc(size_t n) { allocations++; return __libc_malloc(n); }
void *calloc(size_t n, size_t m) { allocations++; return __libc_calloc(n, m); }
void *realloc(void *p, size_t n) { allocations++; return __libc_realloc(p, n); }
int posix_memalign(void **p, size_t a, size_t n) { allocations++; return !(*p = __libc_memalign(a, n)); }
#endif

static const char *package;
static float x[ROWS * COLUMNS], expected[ROWS * COLUMNS];
static const uint8_t mask[5] = {1, 0, 1, 1, 0};

static void run_once(modelc_handle *handle, float *y) {
    int64_t total = 0;
    const void *inputs[] = {x, mask};
    void *outputs[] = {y, &total};
    CHECK(tiny_run(handle, 0, inputs, outputs) == MODELC_OK);
    CHECK(total == 3);
}

static modelc_handle *open_with(int32_t threads) {
    modelc_handle *handle;
    modelc_options options = {.size = sizeof options, .threads = threads};
    CHECK(tiny_open(package, &options, &handle) == MODELC_OK);
    CHECK(tiny_thread_count(handle) == threads);
    return handle;
}

static void *run_shared(void *handle) {
    float y[ROWS * COLUMNS];
    for (int i = 0; i < RUNS; i++) {
        memset(y, 0, sizeof y);
        run_once(handle, y);
        CHECK(!memcmp(y, expected, sizeof y));
    }
    return NULL;
}

static void *run_own(void *threads) {
    modelc_handle *handle = open_with((int32_t)(intptr_t)threads);
    run_shared(handle);
    tiny_close(handle);
    return NULL;
}

static void in_threads(void *(*function)(void *), modelc_handle *shared) {
    pthread_t threads[THREADS];
    for (intptr_t i = 0; i < THREADS; i++)
        CHECK(!pthread_create(&threads[i], NULL, function, shared ? (void *)shared : (void *)(i + 1)));
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    package = argv[1];
    for (int i = 0; i < ROWS * COLUMNS; i++) x[i] = (float)(i * 7919 % 1000) / 500 - 1;
    modelc_handle *one = open_with(1);
    run_once(one, expected);
    tiny_close(one);

    modelc_handle *three = open_with(3);
    static float y[ROWS * COLUMNS];
    long before = allocations;
    for (int i = 0; i < 20; i++) run_once(three, y);
    CHECK(allocations == before);
#ifdef COUNT_ALLOCATIONS
    CHECK(before > 0);
#endif

    CHECK(tiny_profile_start(three) == MODELC_OK);
    in_threads(run_shared, three);
    CHECK(tiny_profile_stop(three) == MODELC_OK);
    modelc_step_profile profile;
    for (int32_t i = 0; i < tiny_step_count(three, 0); i++) {
        CHECK(tiny_profile_read(three, 0, i, &profile) == MODELC_OK);
        CHECK(profile.calls == THREADS * RUNS && profile.nanoseconds > 0);
    }
    in_threads(run_own, NULL);

    CHECK(tiny_run(three, 2, NULL, NULL) == MODELC_BAD_ARGUMENT);
    CHECK(tiny_run(three, 0, NULL, NULL) == MODELC_BAD_ARGUMENT);
    CHECK(tiny_run(NULL, 0, NULL, NULL) == MODELC_BAD_ARGUMENT);
    CHECK(tiny_profile_read(three, 0, 99, &profile) == MODELC_BAD_ARGUMENT);
    CHECK(!tiny_input(three, 0, 2) && !tiny_output(three, -1, 0) && !tiny_input_count(three, 7));
    tiny_close(three);
    CHECK(tiny_open(NULL, NULL, &three) == MODELC_BAD_ARGUMENT && !three);
    CHECK(tiny_open("no such folder", NULL, &three) == MODELC_NO_FILE && strstr(tiny_last_error(), "no such folder"));
    CHECK(tiny_open(package, &(modelc_options){.size = sizeof(modelc_options), .threads = -1}, &three) == MODELC_BAD_ARGUMENT);
    CHECK(tiny_open(package, &(modelc_options){.size = sizeof(modelc_options), .threads = 2, .check = 1}, &three) == MODELC_OK);
    tiny_close(three);
    modelc_options other = {.size = 4};
    CHECK(tiny_open(package, &other, &three) == MODELC_BAD_ARGUMENT && strstr(tiny_last_error(), "options.size is 4"));
    other = (modelc_options){.size = offsetof(modelc_options, check), .threads = 2, .check = 77, .seed = 99};
    CHECK(tiny_open(package, &other, &three) == MODELC_OK); /* of an older header, which ends there */
    tiny_close(three);
    struct { modelc_options options; uint64_t more; } newer = {{.size = sizeof newer, .threads = 2}, 0};
    CHECK(tiny_open(package, &newer.options, &three) == MODELC_OK);
    tiny_close(three);
    newer.more = 1;
    CHECK(tiny_open(package, &newer.options, &three) == MODELC_BAD_ARGUMENT && strstr(tiny_last_error(), "say more"));
    tiny_close(NULL);
    puts("ok");
    return 0;
}
