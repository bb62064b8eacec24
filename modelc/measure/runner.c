/* Runs kernels of shared libraries, each in a process of its own, and says what they computed and how long they took.
 *
 *     runner FOLDER        reads commands on stdin until it ends, answers each with one JSON line on stdout
 *
 *     features NAME...     {"lacks": ""}, or the first of these CPU features that this machine does not have
 *     file NAME BYTES      the bytes follow; they become FOLDER/NAME. For who cannot write there: {}
 *     drop NAME...         removes files. {}
 *     job NAME             does what FOLDER/NAME says. {"outcome": ..., "output": N}, and N bytes follow
 *
 * A job is lines of words. Kernels' arguments are buffers by number, in the order of their lines:
 *
 *     threads N            flush 0|1         limit SECONDS BYTES: what its process may take
 *     place low|high|odd   poison BYTE       cuts N: how the kernel is run whose outputs are looked at
 *     region BYTES FILE    memory filled with copies of FILE, kept from job to job: where constants lie cold
 *     buffer BYTES ITEM poison               ITEM bytes an element; filled with the poison
 *     buffer BYTES ITEM file NAME            contents that no kernel may change
 *     buffer BYTES ITEM cold NAME REGION     the same, but calls that are timed read it from the next place in a region
 *     kernel FILE          candidate, then (as one may) what it is compared with
 *     step SYMBOL EXTENT SCRATCH SERIAL BUFFER...
 *     output BUFFER        is sent back as the candidate's first run left it; several ones follow one another
 *     time SAMPLE LEAST MOST NOISE SECONDS STOP   (none: only one run)
 *
 * Timed samples are of the candidate and of what it is compared with by turns. A sample repeats calls until it takes
 * SAMPLE seconds; LEAST to MOST pairs are taken, until the standard error of the median is below NOISE of it, or SECONDS
 * are over; a candidate that has taken more than STOP seconds (0: any) each time is not timed further.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "modelc_runtime.h"

enum {
    MOST_BUFFERS = 480,
    MOST_WORDS = 512, /* arguments of a kernel, each one register or one slot of the stack */
    MOST_STEPS = 65536,
    MOST_REGIONS = 4,
    MOST_SAMPLES = 1000,
    MOST_CALLS = 1000000, /* in one sample */
    LINE = 65536
};

static const size_t PAGE = 65536; /* a multiple of the pages of every machine */

/* ---- what a job says ---- */

typedef enum { POISONED, CONTENTS, COLD } source;

typedef struct {
    size_t bytes, item;
    source source;
    char *file;
    int32_t region;
    uint8_t *data, *around; /* `around` begins the pages between the guards */
    size_t room;
} buffer;

typedef struct {
    const char *symbol;
    void (*function)(void);
    int32_t extent, serial, count;
    size_t scratch;
    int32_t buffers[MOST_WORDS];
} step;

typedef struct {
    char *library;
    step *steps;
    int32_t count;
} kernel;

typedef struct {
    int32_t threads, flush, buffers, kernels, outputs, regions, cuts, timed;
    int32_t least, most;
    double sample, noise, seconds, stop, limit;
    uint64_t limit_bytes;
    char place[8];
    uint8_t poison;
    buffer buffer[MOST_BUFFERS];
    kernel kernel[2];
    int32_t output[MOST_BUFFERS];
    int32_t region[MOST_REGIONS];
} job;

/* What the process of a job leaves behind, whatever becomes of it. */
typedef struct {
    size_t cursor[MOST_REGIONS];
    int32_t failed, done, buffer, timed, repeats;
    double seconds, reference, noise;
    char outcome[16], message[1024];
    double samples[2][MOST_SAMPLES];
} result;

typedef struct {
    char *file;
    uint8_t *data;
    size_t bytes, cursor;
} region;

static char folder[4096];
static region regions[MOST_REGIONS];

static void die(const char *what, const char *detail) {
    fprintf(stderr, "%s: %s\n", what, detail);
    exit(1);
}

static char *copied(const char *text) {
    char *copy = strdup(text ? text : "");
    if (!copy) die("out of memory for", text);
    return copy;
}

static void path_of(char *path, size_t room, const char *name) {
    if (!*name || strchr(name, '/') || name[0] == '.') die("not the name of a file", name);
    if (snprintf(path, room, "%s/%s", folder, name) >= (int)room) die("path too long", name);
}

static FILE *open_file(const char *name, const char *mode) {
    char path[8192];
    path_of(path, sizeof path, name);
    return fopen(path, mode);
}

/* ---- regions: where constants lie cold ---- */

static int fill(region *r) {
    FILE *file = open_file(r->file, "rb");
    if (!file) return 0;
    size_t pattern = fread(r->data, 1, r->bytes, file);
    fclose(file);
    if (!pattern) return 0;
    for (size_t at = pattern; at < r->bytes; at += pattern) {
        size_t left = r->bytes - at;
        memcpy(r->data + at, r->data, left < pattern ? left : pattern);
    }
    return 1;
}

/* Without huge pages, as parameters have none that are mapped from a file. */
static int use_region(int32_t number, size_t bytes, const char *file) {
    region *r = &regions[number];
    if (r->file && r->bytes == bytes && !strcmp(r->file, file)) return 1;
    if (r->data) munmap(r->data, r->bytes);
    free(r->file);
    *r = (region){.file = copied(file), .bytes = bytes};
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        free(r->file);
        *r = (region){0};
        return 0;
    }
    r->data = memory;
    madvise(memory, bytes, MADV_NOHUGEPAGE);
    return fill(r);
}

/* ---- reading a job ---- */

static const char *word(void) {
    const char *found = strtok(NULL, " \n");
    if (!found) die("a line of a job ends too early", "");
    return found;
}

static uint64_t number(uint64_t most) {
    const char *text = word();
    char *end;
    uint64_t value = strtoull(text, &end, 10);
    if (*end || value > most) die("not a number, or too large", text);
    return value;
}

static double real(void) {
    const char *text = word();
    char *end;
    double value = strtod(text, &end);
    if (*end) die("not a number", text);
    return value;
}

static void read_buffer(job *j) {
    if (j->buffers == MOST_BUFFERS) die("too many buffers", "");
    buffer *b = &j->buffer[j->buffers++];
    b->bytes = number(SIZE_MAX / 4);
    b->item = number(64);
    const char *kind = word();
    b->source = !strcmp(kind, "file") ? CONTENTS : !strcmp(kind, "cold") ? COLD : POISONED;
    if (b->source != POISONED) b->file = copied(word());
    if (b->source == COLD) b->region = (int32_t)number((uint64_t)j->regions - 1);
}

static void read_step(job *j) {
    if (!j->kernels) die("a step before its kernel", "");
    kernel *k = &j->kernel[j->kernels - 1];
    if (k->count == MOST_STEPS) die("too many steps", "");
    k->steps = realloc(k->steps, ((size_t)k->count + 1) * sizeof *k->steps);
    if (!k->steps) die("out of memory for", "steps");
    step *s = &k->steps[k->count++];
    memset(s, 0, sizeof *s);
    s->symbol = copied(word());
    s->extent = (int32_t)number(INT32_MAX);
    s->scratch = number(SIZE_MAX / 4);
    s->serial = (int32_t)number(1);
    for (const char *text; (text = strtok(NULL, " \n"));) {
        if (s->count == MOST_WORDS - 3) die("too many arguments", s->symbol);
        s->buffers[s->count] = atoi(text);
        if (s->buffers[s->count] < 0 || s->buffers[s->count++] >= j->buffers) die("no such buffer", text);
    }
}

static int read_line(job *j, char *line) {
    const char *key = strtok(line, " \n");
    if (!key) return 1;
    if (!strcmp(key, "threads")) j->threads = (int32_t)number(1024);
    else if (!strcmp(key, "flush")) j->flush = (int32_t)number(1);
    else if (!strcmp(key, "limit")) j->limit = real(), j->limit_bytes = number(UINT64_MAX);
    else if (!strcmp(key, "place")) snprintf(j->place, sizeof j->place, "%s", word());
    else if (!strcmp(key, "poison")) j->poison = (uint8_t)number(255);
    else if (!strcmp(key, "cuts")) j->cuts = (int32_t)number(1024);
    else if (!strcmp(key, "region")) {
        if (j->regions == MOST_REGIONS) die("too many regions", "");
        size_t bytes = number(SIZE_MAX / 4);
        if (!use_region(j->regions++, bytes, word())) return 0;
    } else if (!strcmp(key, "buffer")) read_buffer(j);
    else if (!strcmp(key, "kernel")) {
        if (j->kernels == 2) die("too many kernels", "");
        j->kernel[j->kernels++].library = copied(word());
    } else if (!strcmp(key, "step")) read_step(j);
    else if (!strcmp(key, "output")) {
        if (j->outputs == MOST_BUFFERS) die("too many outputs", "");
        j->output[j->outputs++] = (int32_t)number((uint64_t)j->buffers - 1);
    } else if (!strcmp(key, "time")) {
        j->timed = 1;
        j->sample = real();
        j->least = (int32_t)number(MOST_SAMPLES);
        j->most = (int32_t)number(MOST_SAMPLES);
        j->noise = real();
        j->seconds = real();
        j->stop = real();
    } else die("an unknown line of a job", key);
    return 1;
}

static void free_job(job *j) {
    for (int32_t i = 0; i < j->buffers; i++) free(j->buffer[i].file);
    for (int32_t k = 0; k < j->kernels; k++) {
        for (int32_t i = 0; i < j->kernel[k].count; i++) free((char *)(uintptr_t)j->kernel[k].steps[i].symbol);
        free(j->kernel[k].steps);
        free(j->kernel[k].library);
    }
    free(j);
}

/* ---- in the process of a job ---- */

static job *the_job;
static result *the_result;
static uint8_t *the_outputs;
static mc_pool *pool;

static void give_up(const char *outcome, int32_t which, const char *format, const char *detail) {
    result *r = the_result;
    r->failed = 1;
    r->buffer = which;
    snprintf(r->outcome, sizeof r->outcome, "%s", outcome);
    snprintf(r->message, sizeof r->message, format, detail);
    _exit(0);
}

/* Memory between pages that nobody may touch: right after the one before it (low), right before the one after it (high),
 * or one element later than the first (odd). */
static void place(buffer *b, const char *where, uint8_t poison, size_t item) {
    size_t slack = !strcmp(where, "odd") ? item : 0;
    b->room = (b->bytes + slack + PAGE) / PAGE * PAGE;
    uint8_t *memory = mmap(NULL, b->room + 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) give_up("crashed", -1, "its buffers need more memory than it may take%s", "");
    if (mprotect(memory, PAGE, PROT_NONE) || mprotect(memory + PAGE + b->room, PAGE, PROT_NONE))
        give_up("crashed", -1, "its buffers cannot be guarded%s", "");
    b->around = memory + PAGE;
    b->data = b->around + (!strcmp(where, "high") ? b->room - b->bytes : slack);
    memset(b->around, poison, b->room);
}

static void load(buffer *b) {
    FILE *file = open_file(b->file, "rb");
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
    FILE *file = open_file(b->file, "rb");
    static uint8_t block[65536];
    size_t at = 0;
    for (size_t n; file && at < b->bytes && (n = fread(block, 1, sizeof block, file)); at += n)
        if (memcmp(block, b->data + at, n < b->bytes - at ? n : b->bytes - at))
            give_up("wrong", which, "writes to%s", "");
    if (file) fclose(file);
}

static void bind(kernel *k) {
    char path[8192];
    path_of(path, sizeof path, k->library);
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) give_up("build-failed", -1, "cannot be loaded: %s", dlerror());
    for (int32_t i = 0; i < k->count; i++) {
        void *found = dlsym(library, k->steps[i].symbol);
        if (!found) give_up("build-failed", -1, "the library lacks %s", k->steps[i].symbol);
        memcpy(&k->steps[i].function, &found, sizeof found);
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
    words[n] = (uintptr_t)scratch;
    words[n + 1] = (uintptr_t)(intptr_t)begin;
    words[n + 2] = (uintptr_t)(intptr_t)end;
    call(b->step->function, words, n + 3);
}

/* The run that is looked at: every step's parallel loop in `cuts` ranges, the last one first. */
static void run_once(const kernel *k) {
    job *j = the_job;
    buffer scratch = {0};
    for (int32_t i = 0; i < k->count; i++)
        if (k->steps[i].scratch > scratch.bytes) scratch.bytes = (k->steps[i].scratch + 63) / 64 * 64;
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

/* The next place of a cold constant. */
static uintptr_t next_place(const buffer *b) {
    region *r = &regions[b->region];
    size_t stride = (b->bytes + 63) / 64 * 64;
    if (r->cursor + stride > r->bytes) r->cursor = 0;
    if (stride > r->bytes) return (uintptr_t)b->data;
    uint8_t *found = r->data + r->cursor;
    the_result->cursor[b->region] = r->cursor += stride;
    return (uintptr_t)found;
}

/* Seconds of one of `times` calls of a kernel. */
static double timed(const kernel *k, int32_t times) {
    job *j = the_job;
    double start = now();
    uintptr_t data[MOST_BUFFERS], words[MOST_WORDS];
    for (int32_t t = 0; t < times; t++) {
        for (int32_t b = 0; b < j->buffers; b++) data[b] = 0;
        for (int32_t i = 0; i < k->count; i++) {
            const step *s = &k->steps[i];
            for (int32_t a = 0; a < s->count; a++) {
                const buffer *b = &j->buffer[s->buffers[a]];
                uintptr_t *at = &data[s->buffers[a]];
                if (!*at) *at = b->source == COLD ? next_place(b) : (uintptr_t)b->data;
                words[a] = *at;
            }
            bound b = {.step = s, .words = words};
            mc_step one = {run_bound, s->symbol, s->extent, s->serial, 0, 0};
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
    for (int32_t k = j->kernels; k-- > 0;) { /* the candidate last: its first sample shows whether it is worth more */
        timed(&j->kernel[k], 1);
        calls[k] = calls_of(timed(&j->kernel[k], 1));
    }
    while (n < j->most) {
        for (int32_t k = 0; k < j->kernels; k++) r->samples[k][n] = timed(&j->kernel[k], calls[k]);
        if (r->samples[0][n] < least) least = r->samples[0][n];
        evaluate(++n);
        if (j->stop > 0 && least > j->stop) break;
        if (n >= j->least && (r->noise <= j->noise || 1e-9 * (double)mc_now() - begin > j->seconds)) break;
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

static void do_job(void) {
    job *j = the_job;
    size_t scratch = 0, at = 0;
    for (int32_t k = 0; k < j->kernels; k++) bind(&j->kernel[k]);
    for (int32_t i = 0; i < j->buffers; i++) {
        place(&j->buffer[i], j->place, j->poison, j->buffer[i].item);
        if (j->buffer[i].source != POISONED) load(&j->buffer[i]);
    }
    mc_float_enter(j->flush);
    run_once(&j->kernel[0]);
    for (int32_t i = 0; i < j->buffers; i++) look_at(&j->buffer[i], i, j->poison);
    for (int32_t i = 0; i < j->outputs; at += j->buffer[j->output[i++]].bytes)
        memcpy(the_outputs + at, j->buffer[j->output[i]].data, j->buffer[j->output[i]].bytes);
    if (!j->timed) {
        the_result->done = 1;
        return;
    }
    for (int32_t k = 0; k < j->kernels; k++)
        for (int32_t i = 0; i < j->kernel[k].count; i++)
            if (j->kernel[k].steps[i].scratch > scratch) scratch = j->kernel[k].steps[i].scratch;
    pool = mc_pool_open(j->threads, scratch, j->flush);
    if (!pool) give_up("crashed", -1, "its threads cannot be started%s", "");
    take_samples();
    the_result->done = 1;
}

/* ---- the server ---- */

static void say(const char *text) {
    for (; *text; text++) {
        if (*text == '"' || *text == '\\') putchar('\\');
        putchar(*text < ' ' ? ' ' : *text);
    }
}

static void answer(const result *r, const char *outcome, const char *message, size_t output) {
    printf("{\"outcome\": \"%s\", \"message\": \"", outcome);
    say(message);
    printf("\", \"buffer\": %d, \"seconds\": %.9e, \"reference_seconds\": %.9e, \"noise\": %.6e, \"repeats\": %d, ",
           (int)r->buffer, r->seconds, r->reference, r->noise, (int)r->repeats);
    printf("\"output\": %zu}\n", output);
}

/* Waits until the child has ended (its end of the pipe closes) or `seconds` are over; ends with whoever asked. */
static int ended(int pipe_end, pid_t child, double seconds) {
    struct pollfd wanted[2] = {{.fd = pipe_end}, {.fd = 0}};
    uint64_t until = mc_now() + (uint64_t)(1e9 * seconds);
    for (;;) {
        uint64_t at = mc_now();
        if (at >= until) return 0;
        uint64_t left = (until - at) / 1000000 + 1;
        if (poll(wanted, 2, left > 1000000 ? 1000000 : (int)left) < 0 && errno != EINTR) die("poll", strerror(errno));
        if (wanted[0].revents) return 1;
        if (wanted[1].revents & (POLLHUP | POLLERR)) {
            kill(child, SIGKILL);
            exit(0);
        }
    }
}

static void report(const job *j, int in_time, int status, size_t bytes) {
    const result *r = the_result;
    const char *when = r->timed ? "while it was timed" : "in its first run";
    char text[256];
    size_t output = 0;
    if (!in_time) {
        snprintf(text, sizeof text, "did not end within %g s, %s", j->limit, when);
        answer(r, "timeout", text, 0);
    } else if (WIFSIGNALED(status)) {
        snprintf(text, sizeof text, "%s (signal %d), %s", strsignal(WTERMSIG(status)), WTERMSIG(status), when);
        answer(r, "crashed", text, 0);
    } else if (r->failed) {
        answer(r, r->outcome, r->message, 0);
    } else if (!r->done) {
        snprintf(text, sizeof text, "ended its process with %d, %s", WEXITSTATUS(status), when);
        answer(r, "crashed", text, 0);
    } else {
        answer(r, "ok", "", output = bytes);
    }
    if (output) fwrite(the_outputs, 1, output, stdout);
}

static void *shared(size_t bytes) {
    void *memory = mmap(NULL, bytes ? bytes : 1, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) die("out of memory for", "results");
    return memory;
}

static void run_job(const char *name) {
    job *j = the_job = calloc(1, sizeof *j);
    if (!j) die("out of memory for", name);
    *j = (job){.threads = 1, .limit = 10, .limit_bytes = 1 << 30, .cuts = 1, .place = "low", .poison = 255};
    static char line[LINE];
    FILE *file = open_file(name, "r");
    if (!file) die("cannot read the job", name);
    int room = 1;
    while (fgets(line, sizeof line, file)) room &= read_line(j, line);
    fclose(file);
    if (!j->kernels) die("no kernel in the job", name);
    size_t bytes = 0;
    for (int32_t i = 0; i < j->outputs; i++) bytes += j->buffer[j->output[i]].bytes;
    the_result = shared(sizeof *the_result);
    the_outputs = shared(bytes);
    the_result->buffer = -1;
    for (int32_t i = 0; i < MOST_REGIONS; i++) the_result->cursor[i] = regions[i].cursor;
    int ends[2], status = 0, in_time;
    if (!room) {
        answer(the_result, "crashed", "there is no memory for cold constants", 0);
    } else {
        pid_t server = getpid();
        fflush(stdout);
        if (pipe(ends)) die("pipe", strerror(errno));
        pid_t child = fork();
        if (child < 0) die("fork", strerror(errno));
        if (!child) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            if (getppid() != server) _exit(0);
            close(ends[0]);
            int nowhere = open("/dev/null", O_RDWR); /* what a kernel prints is no answer */
            dup2(nowhere, 0);
            dup2(nowhere, 1);
            limit_memory(j->limit_bytes);
            do_job();
            _exit(0);
        }
        close(ends[1]);
        in_time = ended(ends[0], child, j->limit);
        if (!in_time) kill(child, SIGKILL);
        waitpid(child, &status, 0);
        close(ends[0]);
        report(j, in_time, status, bytes);
        for (int32_t i = 0; i < MOST_REGIONS; i++) regions[i].cursor = the_result->cursor[i];
    }
    fflush(stdout);
    munmap(the_result, sizeof *the_result);
    munmap(the_outputs, bytes ? bytes : 1);
    free_job(j);
}

static void take_file(void) {
    const char *name = word();
    FILE *file = open_file(name, "wb");
    uint64_t bytes = number(SIZE_MAX / 4);
    static uint8_t block[65536];
    if (!file) die("cannot write", name);
    for (size_t n; bytes; bytes -= n) {
        n = fread(block, 1, bytes < sizeof block ? (size_t)bytes : sizeof block, stdin);
        if (!n || fwrite(block, 1, n, file) != n) die("cannot write", name);
    }
    if (fclose(file)) die("cannot write", name);
}

static void drop_files(void) {
    char path[8192];
    for (const char *name; (name = strtok(NULL, " \n"));) {
        path_of(path, sizeof path, name);
        unlink(path);
    }
}

int main(int argc, char **argv) {
    static char line[LINE];
    if (argc != 2 || snprintf(folder, sizeof folder, "%s", argv[1]) >= (int)sizeof folder) die("usage", "runner FOLDER");
    while (fgets(line, sizeof line, stdin)) {
        const char *command = strtok(line, " \n"), *lacks = "";
        if (!command) continue;
        if (!strcmp(command, "job")) {
            run_job(word());
            continue;
        }
        if (!strcmp(command, "file")) take_file();
        else if (!strcmp(command, "drop")) drop_files();
        else if (!strcmp(command, "features")) {
            for (const char *name; !*lacks && (name = strtok(NULL, " \n"));)
                if (mc_cpu_has(name) != MC_CPU_HAS) lacks = name;
            printf("{\"lacks\": \"");
            say(lacks);
            printf("\"}\n");
        } else die("an unknown command", command);
        if (strcmp(command, "features")) printf("{}\n");
        fflush(stdout);
    }
    return 0;
}
