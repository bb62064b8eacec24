/* What the process of a job does: one run that is looked at, then samples of time. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "runner.h"

static const double SURE = 2; /* standard errors */
static const size_t PAGE = 65536; /* a multiple of the pages of every machine */

static job *the_job;
static result *the_result;
static mc_pool *pool;

static void give_up(const char *outcome, int32_t which, const char *format, const char *detail) {
    result *r = the_result;
    r->failed = 1;
    r->buffer = which;
    snprintf(r->outcome, sizeof r->outcome, "%s", outcome);
    snprintf(r->message, sizeof r->message, format, detail);
    _exit(0);
}

/* The cold constants of what the candidate is compared with, which nothing but timed calls reads, stay files. */
static int is_placed(const job *j, int32_t number) {
    if (!mr_lies_cold(&j->buffer[number])) return 1;
    for (int32_t i = 0; i < j->kernel[0].count; i++)
        for (int32_t a = 0; a < j->kernel[0].steps[i].count; a++)
            if (j->kernel[0].steps[i].buffers[a] == number) return 1;
    return 0;
}

/* Memory between pages that nobody may touch: right after the one before it (low), right before the one after it (high),
 * or one element later than the first (odd). All is poison but what contents are to fill. */
static void place(buffer *b, const char *where, uint8_t poison, size_t item) {
    size_t slack = !strcmp(where, "odd") ? item : 0;
    b->room = (b->bytes + slack + PAGE) / PAGE * PAGE;
    uint8_t *memory = mmap(NULL, b->room + 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) give_up("crashed", -1, "its buffers need more memory than it may take%s", "");
    if (mprotect(memory, PAGE, PROT_NONE) || mprotect(memory + PAGE + b->room, PAGE, PROT_NONE))
        give_up("crashed", -1, "its buffers cannot be guarded%s", "");
    b->around = memory + PAGE;
    b->data = b->around + (!strcmp(where, "high") ? b->room - b->bytes : slack);
    size_t filled = b->source == POISONED ? 0 : b->bytes, before = (size_t)(b->data - b->around);
    memset(b->around, poison, before);
    memset(b->data + filled, poison, b->room - before - filled);
}

static void load(buffer *b) {
    FILE *file = mr_open_file(b->file, "rb");
    if (!file || fread(b->data, 1, b->bytes, file) != b->bytes) give_up("crashed", -1, "cannot read %s", b->file);
    fclose(file);
}

/* What it was not to touch: what lies around it, and its contents if they are given. */
static void look_at(const buffer *b, int32_t which, uint8_t poison) {
    const uint8_t *end = b->around + b->room;
    for (const uint8_t *p = b->around; p < end; p++) {
        if (p == b->data) p += b->bytes;
        if (p < end && *p != poison) give_up("wrong", which, "writes around%s", "");
    }
    if (b->source == POISONED) return;
    FILE *file = mr_open_file(b->file, "rb");
    static uint8_t block[65536];
    size_t at = 0;
    for (size_t n; file && at < b->bytes && (n = fread(block, 1, sizeof block, file)); at += n)
        if (memcmp(block, b->data + at, n < b->bytes - at ? n : b->bytes - at))
            give_up("wrong", which, "writes to%s", "");
    if (file) fclose(file);
}

static void bind(kernel *k) {
    char path[8192];
    mr_path_of(path, sizeof path, k->library);
    char why[256];
    library loaded;
    if (mr_load(&loaded, path, why, sizeof why)) give_up("build-failed", -1, "cannot be loaded: %s", why);
    for (int32_t i = 0; i < k->count; i++) {
        void *found = mr_symbol(&loaded, k->steps[i].symbol);
        if (!found) give_up("build-failed", -1, "the library lacks %s", k->steps[i].symbol);
        memcpy(&k->steps[i].function, &found, sizeof found);
        if (k->steps[i].scratch > k->scratch) k->scratch = mr_in_lines(k->steps[i].scratch);
    }
}

/* A call whose arguments are as many words as there are: on the machines that packages are made for, pointers and
 * int32_t take one register or one slot of the stack each, and a function does not see what it has no parameter for. */
#define W4(k) w[k], w[(k) + 1], w[(k) + 2], w[(k) + 3]
#define W16(k) W4(k), W4((k) + 4), W4((k) + 8), W4((k) + 12)
#define W64(k) W16(k), W16((k) + 16), W16((k) + 32), W16((k) + 48)
#define W256(k) W64(k), W64((k) + 64), W64((k) + 128), W64((k) + 192)
#define T4 uintptr_t, uintptr_t, uintptr_t, uintptr_t
#define T16 T4, T4, T4, T4
#define T64 T16, T16, T16, T16
#define T256 T64, T64, T64, T64

static void call(void (*f)(void), const uintptr_t *w, int32_t n) {
    if (n <= 8) ((void (*)(T4, T4))f)(W4(0), W4(4));
    else if (n <= 16) ((void (*)(T16))f)(W16(0));
    else if (n <= 64) ((void (*)(T64))f)(W64(0));
    else ((void (*)(T256, T256))f)(W256(0), W256(256));
}

typedef struct {
    mc_frame frame; /* first: what the pool hands over is this */
    const step *step;
    const uintptr_t *words;
} bound;

static void run_bound(const mc_frame *frame, uint8_t *scratch, int32_t begin, int32_t end) {
    const bound *b = (const bound *)frame;
    uintptr_t words[MOST_WORDS];
    int32_t n = b->step->count;
    for (int32_t i = 0; i < n; i++) words[i] = b->words[i];
    words[n] = (uintptr_t)mr_scratch_here(the_job, scratch);
    words[n + 1] = (uintptr_t)(intptr_t)begin;
    words[n + 2] = (uintptr_t)(intptr_t)end;
    call(b->step->function, words, n + 3);
}

/* The run that is looked at: every step's parallel loop in `cuts` ranges, the last one first. */
static void run_once(const kernel *k) {
    job *j = the_job;
    buffer scratch = {.bytes = k->scratch};
    place(&scratch, j->place, j->poison, 64);
    for (int32_t i = 0; i < k->count; i++) {
        const step *s = &k->steps[i];
        uintptr_t words[MOST_WORDS];
        for (int32_t a = 0; a < s->count; a++) words[a] = (uintptr_t)j->buffer[s->buffers[a]].data;
        bound b = {.step = s, .words = words};
        for (int32_t c = j->cuts; c-- > 0;) {
            memset(scratch.data, j->poison, scratch.bytes);
            run_bound(&b.frame, scratch.data, (int32_t)((int64_t)s->extent * c / j->cuts),
                      (int32_t)((int64_t)s->extent * (c + 1) / j->cuts));
        }
    }
    look_at(&scratch, MOST_BUFFERS, j->poison);
    munmap(scratch.around - PAGE, scratch.room + 2 * PAGE);
}

/* ---- timing ---- */

static double now(void) {
    struct timespec t;
    clock_gettime(the_job->threads > 1 ? CLOCK_MONOTONIC : CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* The next copy of a constant that lies cold. */
static uintptr_t next_copy(const buffer *b) {
    region *r = &mr_regions[b->region];
    size_t stride = mr_cold_stride(b);
    if (r->cursor + stride > r->bytes) r->cursor = 0;
    uint8_t *found = r->data + r->cursor;
    the_result->cursor[b->region] = r->cursor += stride;
    return (uintptr_t)found;
}

/* Seconds of one of `times` calls of a kernel. */
static double timed(const kernel *k, int32_t sample, int32_t times) {
    job *j = the_job;
    mr_go_to(j, k, sample, pool);
    double start = now();
    uintptr_t data[MOST_BUFFERS], words[MOST_WORDS];
    for (int32_t t = 0; t < times; t++) {
        for (int32_t b = 0; b < j->buffers; b++) data[b] = 0;
        for (int32_t i = 0; i < k->count; i++) {
            const step *s = &k->steps[i];
            for (int32_t a = 0; a < s->count; a++) {
                const buffer *b = &j->buffer[s->buffers[a]];
                uintptr_t *at = &data[s->buffers[a]];
                if (!*at) *at = mr_lies_cold(b) ? next_copy(b) : (uintptr_t)mr_here(j, b);
                words[a] = *at;
            }
            bound b = {.step = s, .words = words};
            mc_step one = {.run = run_bound, .extent = s->extent, .serial = s->serial};
            mc_pool_run(pool, &one, &b.frame);
        }
    }
    return (now() - start) / times;
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(const double *values, int32_t n) {
    double sorted[MOST_SAMPLES];
    memcpy(sorted, values, (size_t)n * sizeof *sorted);
    qsort(sorted, (size_t)n, sizeof *sorted, ascending);
    return n % 2 ? sorted[n / 2] : (sorted[n / 2 - 1] + sorted[n / 2]) / 2;
}

/* Seconds, and their standard error relative to them: of the medians, over what is compared with, so that drift is
 * divided out. 1.4826 and 1.2533: of normal errors, the deviation over the median deviation, and the error of a median
 * over that of a mean. */
static void evaluate(int32_t n) {
    result *r = the_result;
    int compared = the_job->kernels == 2;
    double ratios[MOST_SAMPLES], apart[MOST_SAMPLES], squared = 0;
    r->reference = compared ? median(r->samples[1], n) : 0;
    for (int32_t i = 0; i < n; i++) ratios[i] = r->samples[0][i] / (compared ? r->samples[1][i] : 1);
    double middle = median(ratios, n), spread;
    for (int32_t i = 0; i < n; i++) apart[i] = ratios[i] > middle ? ratios[i] - middle : middle - ratios[i];
    spread = 1.4826 * 1.2533 * median(apart, n) / middle;
    while ((squared + 0.01) * (squared + 0.01) < n) squared += 0.01; /* the root of n, without libm */
    r->noise = spread / squared;
    r->seconds = middle * (compared ? r->reference : 1);
    r->repeats = n;
}

static int32_t calls_of(double seconds) {
    double calls = the_job->sample / (seconds > 1e-9 ? seconds : 1e-9);
    return calls < 1 ? 1 : calls > MOST_CALLS ? MOST_CALLS : (int32_t)calls;
}

static void take_samples(void) {
    job *j = the_job;
    result *r = the_result;
    int32_t calls[2] = {1, 1}, n = 0;
    double least = 1e300, begin = 1e-9 * (double)mc_now();
    r->timed = 1;
    for (int32_t k = j->kernels; k-- > 0;) {
        timed(&j->kernel[k], 0, 1);
        calls[k] = calls_of(r->samples[k][0] = timed(&j->kernel[k], 0, 1));
    }
    int sampled = calls[0] == 1 && calls[1] == 1; /* single calls are samples as any */
    for (; n < j->most; sampled = 0) {
        for (int32_t k = 0; k < j->kernels && !sampled; k++) r->samples[k][n] = timed(&j->kernel[k], n, calls[k]);
        if (r->samples[0][n] < least) least = r->samples[0][n];
        evaluate(++n);
        if (j->stop > 0 && least > (n > 1 ? 1 : 2) * j->stop) break;
        int slower = j->near > 0 && r->seconds * (1 - SURE * r->noise) > j->near;
        if (n >= j->least && (slower || r->noise <= j->noise || 1e-9 * (double)mc_now() - begin > j->seconds)) break;
    }
}

/* Memory beyond what the process has now. */
static void limit_memory(uint64_t bytes) {
    FILE *file = fopen("/proc/self/statm", "r");
    unsigned long long pages = 0;
    if (file && fscanf(file, "%llu", &pages) != 1) pages = 0;
    if (file) fclose(file);
    uint64_t most = pages * (uint64_t)sysconf(_SC_PAGESIZE) + bytes;
    if (pages && most < RLIM_INFINITY) setrlimit(RLIMIT_AS, &(struct rlimit){(rlim_t)most, (rlim_t)most});
    setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
}

void mr_do_job(job *j, result *r, uint8_t *outputs) {
    size_t at = 0;
    the_job = j;
    the_result = r;
    limit_memory(j->limit_bytes);
    for (int32_t k = 0; k < j->kernels; k++) bind(&j->kernel[k]);
    for (int32_t i = 0; i < j->buffers; i++) {
        if (!is_placed(j, i)) continue;
        place(&j->buffer[i], j->place, j->poison, j->buffer[i].item);
        if (j->buffer[i].source != POISONED) load(&j->buffer[i]);
    }
    mc_float_enter(j->flush);
    run_once(&j->kernel[0]);
    for (int32_t i = 0; i < j->buffers; i++)
        if (j->buffer[i].around) look_at(&j->buffer[i], i, j->poison);
    for (int32_t i = 0; i < j->outputs; at += j->buffer[j->output[i++]].bytes)
        memcpy(outputs + at, j->buffer[j->output[i]].data, j->buffer[j->output[i]].bytes);
    if (!j->timed) {
        r->done = 1;
        return;
    }
    if (!mr_make_places(j)) give_up("crashed", -1, "its buffers need more memory than it may take%s", "");
    const modelc_options options = {.size = sizeof options, .threads = j->threads};
    pool = mc_pool_open(&options, (size_t)j->places * j->scratch_bytes, j->flush);
    if (!pool) give_up("crashed", -1, "its threads cannot be started%s", "");
    take_samples();
    r->done = 1;
}

