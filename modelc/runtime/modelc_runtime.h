/* What the generated model_plan.c and the files of the runtime share. Not part of a package's interface. */
#ifndef MODELC_RUNTIME_H
#define MODELC_RUNTIME_H

#include <stdarg.h>
#include <stdatomic.h>

#include "model.h"

typedef modelc_frame mc_frame;

/* Runs iterations [begin, end) of a step's outermost loop. The result does not depend on how the loop is cut. */
typedef void (*mc_kernel)(const mc_frame *frame, uint8_t *scratch, int32_t begin, int32_t end);

/* Whole numbers that addresses are computed from, and where they have to lie. `column` is the one of the last dimension
 * that they are, which shape and strides leave out; -1: they are all. */
enum { MC_MOST_RANK = 32 };
typedef struct mc_range {
    const char *operator_name;
    const char *value;
    const int64_t *shape;
    const int64_t *strides; /* in elements */
    int32_t dtype;          /* MODELC_INT32 or MODELC_INT64 */
    int32_t rank;
    int32_t column;
    int64_t low;
    int64_t high; /* included */
} mc_range;

typedef struct mc_step {
    mc_kernel run;
    /* Whether the data that the step addresses by is right; else `sentence` says what is wrong. NULL: nothing to ask. */
    int (*check)(const mc_frame *frame, char *sentence, size_t size);
    const char *name;
    int32_t extent;
    int32_t serial; /* too little work to share: runs on the calling thread */
    double flops;
    double bytes;
    int32_t (*trips)(const int64_t *dims); /* `extent` in a run, where sizes are free: that is the most */
} mc_step;

static inline int32_t mc_extent_in(const mc_step *step, const mc_frame *frame) {
    return step->trips ? step->trips(frame->dims) : step->extent;
}

/* What expressions of sizes are made of; quotients round down. */
static inline int64_t mc_quotient(int64_t a, int64_t b) { return a / b - (a % b < 0); }
static inline int64_t mc_remainder(int64_t a, int64_t b) { return a - mc_quotient(a, b) * b; }
static inline int64_t mc_smaller(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t mc_larger(int64_t a, int64_t b) { return a > b ? a : b; }

/* A whole number of a run: `plain`, or what `said` makes of its sizes. */
typedef struct mc_number {
    int64_t plain;
    int64_t (*said)(const int64_t *dims);
} mc_number;

static inline int64_t mc_number_in(const mc_number *number, const mc_frame *frame) {
    return number->said ? number->said(frame->dims) : number->plain;
}

/* Where data is: so many bytes into the arena, the parameters, input or output `index`, where slot `index` points, size
 * `index`, or what is made of the parameters. */
typedef enum { MC_NOWHERE, MC_ARENA, MC_PARAMS, MC_INPUT, MC_OUTPUT, MC_SLOT, MC_SIZE, MC_MADE } mc_space;
typedef struct mc_address {
    mc_space space;
    int32_t index;
    mc_number offset;
} mc_address;

/* What an iteration hands to the next: the first reads `start`, then `result` and `spare` are written and read by turns;
 * in the end it lies in `result`. */
typedef struct mc_carried {
    int32_t read; /* slots */
    int32_t written;
    mc_address start;
    mc_address result;
    mc_address spare;
    mc_number bytes;
} mc_carried;

/* What lies so many bytes further with every iteration. */
typedef struct mc_moving {
    int32_t slot;
    mc_address start;
    mc_number bytes;
} mc_moving;

/* What decides whether, and how often, the steps [first, end) run. Rows up to `next` are within it.
 *   MC_STEADY  `limit` times, and arguments move with every iteration
 *   MC_BRANCH  [first, middle) (rows before `cut`) where the bool at `condition` is true, else [middle, end)
 *   MC_REPEAT  while the bool at `condition`, and after an iteration that at `go`, is true, at most as often as the int64
 *              at `count` says and `limit` times; what is nowhere, and a limit of -1, does not end it */
typedef enum { MC_STEADY, MC_BRANCH, MC_REPEAT } mc_kind;
typedef struct mc_control {
    mc_kind kind;
    int32_t first;
    int32_t middle;
    int32_t end;
    int32_t cut;
    int32_t next;
    mc_number limit;
    const char *refusal; /* of a branch: how a run ends that comes to where there are no steps; NULL: it goes on */
    mc_address condition;
    mc_address count;
    mc_address go;
    mc_address number; /* an int64: which iteration it is */
    const mc_carried *carried;
    const mc_moving *moving;
    int32_t carried_count;
    int32_t moving_count;
} mc_control;

/* What the handle keeps from run to run: it lies in two halves of memory at the same offset, and each run reads one half
 * and writes the other; or, where both slots are the same, a cache that grows, in one place behind both halves. */
typedef struct mc_state {
    int32_t read; /* slots */
    int32_t written;
    uint64_t offset;
} mc_state;

/* An extent that a run says, of an output whose shape is the most that there can be. */
typedef struct mc_extent {
    int32_t output;
    int32_t axis;
} mc_extent;

/* A free size: `unit` times as much, from `least` to `most` times, is what input `input` has along `axis`. Where `input` is
 * MC_LENGTH it is the length of a cache, and a run makes that longer by `growth`; where it is MC_FOUND a step of the run
 * writes it, and until then it is the most. */
enum { MC_MOST_SIZES = 16, MC_LENGTH = -1, MC_FOUND = -2 };
typedef struct mc_size {
    const char *name;
    int64_t least;
    int64_t most;
    int64_t unit;
    int32_t input;
    int32_t axis;
    mc_number growth;
} mc_size;

typedef struct mc_variant {
    const modelc_tensor *inputs;
    const modelc_tensor *outputs;
    const mc_step *steps;
    const mc_control *control; /* each before what is within it */
    const mc_state *states;
    const mc_extent *extents;
    const mc_size *sizes;
    /* What the shape of an input or output is where the sizes are `dims`: writes the extents that depend on them. */
    void (*shape)(const int64_t *dims, int32_t output, int32_t index, int64_t *shape);
    int32_t input_count;
    int32_t output_count;
    int32_t step_count;
    int32_t control_count;
    int32_t state_count;
    int32_t extent_count;
    int32_t size_count;
    uint64_t state_bytes; /* of one half */
    uint64_t cache_bytes; /* of all caches that grow */
} mc_variant;

/* A constant that is made of the parameters when a package is opened, at byte `offset` of what is made.
 *   With a `matrix`: `outer` times `rows` rows of `inner` floats. Each is a sum of the `columns` rows of floats that lie at
 *   byte `source` of the parameters, or of what was `widened` before, times a row of the matrix.
 *   Without: numbers of `dtype`, in an array of `rank` extents, times floats that lie at byte `factors`; which one, strides
 *   say. The last extent is `inner`, and the others make `outer`. */
typedef struct mc_made {
    uint64_t source;
    uint64_t factors;
    uint64_t offset;
    int64_t outer;
    int64_t inner;
    int32_t rows;
    int32_t columns;
    int32_t widened;
    const double *matrix; /* [rows, columns] */
    int32_t dtype;
    int32_t rank;
    const int64_t *extents;
    const int64_t *strides;
} mc_made;

typedef struct mc_model {
    const char *build_id;
    const char *metadata;
    const char *const *features; /* CPU features that the kernels use, ended by NULL */
    const mc_variant *variants;
    int32_t variant_count;
    int32_t schema_version;
    int32_t flush_denormals;
    uint64_t arena_bytes;   /* the most of any variant */
    uint64_t scratch_bytes; /* the most of any step */
    uint64_t params_bytes;
    int32_t slot_count; /* the most of any variant */
    uint8_t params_sha256[32];
    const uint8_t *params; /* where they are in the library; NULL: in params.bin */
    const mc_made *made;
    int32_t made_count;
    uint64_t made_bytes;
} mc_model;

extern const mc_model mc_the_model; /* in model_plan.c */

typedef struct mc_counter {
    uint64_t calls, nanoseconds;
} mc_counter;

/* What a variant keeps from run to run. */
typedef struct mc_kept {
    uint8_t *halves;     /* of the variant's states, one after the other; then its caches */
    int turn;            /* the half that the next run reads */
    int64_t *sizes;      /* of the outputs of the last run, where they depend on data */
    int64_t *dims;       /* the free sizes in the last run */
    atomic_int *lengths; /* of those that are lengths of caches what the next run reads */
    int said;            /* whether that run came to its end */
} mc_kept;

struct modelc_handle {
    struct mc_host *host; /* threads, lock and mappings; NULL where there is no system */
    uint8_t *arena;
    uint8_t *scratch; /* where steps run on the calling thread alone */
    uint8_t **slots;
    const uint8_t *params;
    const uint8_t *made;
    int32_t threads;
    int profiling;
    uint64_t random[2];    /* the seed, and the runs so far */
    mc_counter **counters; /* [variant][step] */
    modelc_watcher watcher;
    void *context; /* the watcher's */
    mc_kept *kept; /* [variant] */
    atomic_int stopped; /* runs are to end */
    modelc_poller poller;
    void *polled;   /* the poller's context */
    uint64_t began; /* when a run looked at the clock first; 0: not yet */
    uint64_t asked; /* when it asked the poller last */
    uint64_t limit; /* nanoseconds that a run may last; 0: any number */
};

/* modelc_memory.c: all that a handle has but parameters and workspaces, in `memory`, which is zeros; NULL: the bytes that it
 * takes are only counted. */
uint64_t mc_place(modelc_handle *handle, uint8_t *memory, int profiled);

/* modelc_steps.c */
const mc_variant *mc_variant_of(const modelc_handle *handle, int32_t variant); /* NULL: there is none */
modelc_status mc_no_such_variant(const modelc_handle *handle, int32_t variant);

/* modelc_host.c, or modelc_bare.c where there is no system. */
enum { MC_MESSAGE_BYTES = 1024 };
char *mc_message(void); /* what last_error says */
void mc_lock(modelc_handle *handle);
void mc_unlock(modelc_handle *handle);
void mc_run_shared(const modelc_handle *handle, const mc_step *step, const mc_frame *frame);
modelc_status mc_ask(modelc_handle *handle); /* the poller, or the clock, whether the run may go on */

/* modelc_text.c: printf for sentences. mc_append gives the length of the text, which had `used` characters. mc_fail sets what
 * last_error says from now on, and gives the status back. */
size_t mc_write(char *text, size_t size, const char *format, va_list arguments);
__attribute__((format(printf, 4, 5))) size_t mc_append(char *text, size_t size, size_t used, const char *format, ...);
__attribute__((format(printf, 2, 3))) modelc_status mc_fail(modelc_status status, const char *format, ...);

/* modelc_pool.c: fork and join over the iterations of one step. */
typedef struct mc_pool mc_pool;
mc_pool *mc_pool_open(const modelc_options *options, size_t scratch_bytes, int flush_denormals);
void mc_pool_close(mc_pool *pool);
void mc_pool_enter(mc_pool *pool); /* before a process runs steps: it may have been forked since */
void mc_pool_run(mc_pool *pool, const mc_step *step, const mc_frame *frame);
uint64_t mc_now(void); /* nanoseconds of the monotonic clock */
void *mc_map_zeroed(size_t bytes);
void mc_unmap(void *memory, size_t bytes);

/* modelc_files.c: a file of the package; whether its manifest is the library's. */
modelc_status mc_open_file(const char *folder, const char *name, int *fd, uint64_t *bytes);
modelc_status mc_check_manifest(const char *folder);

/* modelc_params.c: parameters that are not in the library, and what is unmapped in the end. */
typedef struct mc_params {
    const uint8_t *data;
    void *mapped; /* NULL: nothing is */
    size_t mapped_bytes;
} mc_params;
modelc_status mc_params_of_folder(const char *folder, mc_params *params);
modelc_status mc_params_of_file(int fd, uint64_t offset, uint64_t bytes, mc_params *params);
modelc_status mc_params_of_memory(const void *memory, size_t bytes, mc_params *params);
modelc_status mc_check_params(const uint8_t *data, const char *folder); /* NULL: they lie in none */
void mc_unmap_params(mc_params params);

/* modelc_made.c: what is made of a handle's parameters, by the first handle of the process, on its threads. */
modelc_status mc_made_open(modelc_handle *handle);
void mc_made_close(modelc_handle *handle);

/* modelc_check.c: whether this machine has the CPU features that the kernels use. */
modelc_status mc_check_cpu(void);

/* modelc_features.c: whether it has one; where nobody can be asked, as in a program without a system, it has each. */
typedef enum { MC_CPU_HAS, MC_CPU_LACKS, MC_CPU_UNKNOWN_NAME, MC_CPU_REFUSED } mc_cpu_answer;
mc_cpu_answer mc_cpu_has(const char *feature);

/* modelc_cpu.c: how many CPUs there are. */
int32_t mc_cpu_affinity(void); /* CPUs that this process may be scheduled on */
int32_t mc_cpu_limit(void);    /* the same, bounded by the cgroup's quota: threads worth starting */
/* modelc_float.c: floating-point control of this thread: rounding to nearest, no traps, subnormals flushed or kept. */
uint64_t mc_float_enter(int flush_denormals);
void mc_float_leave(uint64_t saved);

/* modelc_range.c: whether `data` lies in the range; else what is wrong, in a sentence. */
int mc_in_range(const mc_range *range, const void *data, char *sentence, size_t size);

/* modelc_fit.c: shapes are of all inputs; NULL: the variant's own. mc_no_variant says what there is where none takes
   them. */
int32_t mc_variant_for(const modelc_handle *handle, const int64_t *const *shapes); /* -1: there is none */
int mc_fits(const modelc_handle *handle, int32_t variant, const int64_t *const *shapes);
modelc_status mc_no_variant(const modelc_handle *handle, const int64_t *const *shapes);

/* modelc_free.c: the free sizes of a variant where inputs have these shapes (NULL: the most), and its caches are as long as
 * they are. MODELC_OK where it takes them; else, where `sentence` is not NULL, it says what is wrong. */
modelc_status mc_dims_of(const modelc_handle *handle, int32_t variant, const int64_t *const *shapes, int64_t *dims,
                         char *sentence, size_t size);
/* Takes the gaps out of outputs whose sizes depend on data: `counts`, of which there are as many as the variant has extents. */
void mc_close_gaps(const mc_variant *v, const int64_t *dims, const int64_t *counts, void *const *outputs);

/* modelc_sha256.c */
void mc_sha256(const uint8_t *data, size_t bytes, uint8_t digest[32]);

#endif
