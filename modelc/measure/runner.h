/* What the files of the runner share: what a job says (runner_job.c), what its process does (runner_run.c) with kernels
 * (runner_load.c), where these are timed (runner_places.c), and the server (runner.c). */
#ifndef MODELC_RUNNER_H
#define MODELC_RUNNER_H

#include <link.h>
#include <stdint.h>
#include <stdio.h>

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

typedef enum { POISONED, CONTENTS, COLD } source;

typedef struct {
    size_t bytes, item;
    source source;
    char *file;
    int32_t region;
    uint8_t *data, *around; /* `around` begins the pages between the guards */
    size_t room, offset; /* `offset` in a place, see runner_places.c */
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
    size_t scratch; /* the most of its steps, in whole lines */
} kernel;

typedef struct {
    int32_t threads, flush, buffers, kernels, outputs, regions, cuts, timed;
    int32_t least, most;
    double sample, noise, seconds, stop, near, limit;
    uint64_t limit_bytes;
    char place[8];
    uint8_t poison;
    buffer buffer[MOST_BUFFERS];
    kernel kernel[2];
    int32_t output[MOST_BUFFERS];
    int32_t region[MOST_REGIONS];
    int32_t places, here; /* the place of the next timed calls */
    size_t place_bytes, scratch_bytes; /* of one place: buffers, and scratch of each thread */
    uint8_t *memory;
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
    char *kind;
    uint8_t *data;
    size_t bytes, room, cursor; /* bytes of the room are used */
} region;

typedef struct {
    uint8_t *base;
    const ElfW(Sym) *symbols;
    size_t count;
    const char *names;
} library;

/* runner_load.c: what is wrong with a library, in `why`, or NULL; and where a symbol of it is, or NULL. */
const char *mr_load(library *l, const char *path, char *why, size_t room);
void *mr_symbol(const library *l, const char *name);

/* The bytes of whole cache lines. */
static inline size_t mr_in_lines(size_t bytes) { return (bytes + 63) / 64 * 64; }

/* runner_job.c */
extern char mr_folder[4096];
extern region mr_regions[MOST_REGIONS];
_Noreturn void mr_die(const char *what, const char *detail);
void mr_path_of(char *path, size_t room, const char *name);
FILE *mr_open_file(const char *name, const char *mode);
const char *mr_word(void);                         /* the next one of the line that strtok is in */
uint64_t mr_number(uint64_t most);                 /* the same, as a number */
int mr_read_job(job *j, const char *name);         /* 0: there is no memory for its regions */
void mr_free_job(job *j);

/* runner_places.c. Whether timed calls read a constant from its region; else it is in every place. */
size_t mr_cold_stride(const buffer *b);
int mr_lies_cold(const buffer *b);
int mr_make_places(job *j); /* 0: there is no memory for them */
uint8_t *mr_here(const job *j, const buffer *b);
uint8_t *mr_scratch_here(const job *j, uint8_t *scratch);
void mr_go_to(job *j, const kernel *k, int32_t sample, mc_pool *pool); /* where a kernel is timed next */

/* runner_run.c: in a process of its own, which may end anywhere in it. `outputs` gets the bytes of the outputs. */
void mr_do_job(job *j, result *r, uint8_t *outputs);

#endif
