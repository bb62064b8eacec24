/* What all compiled models have in common: types, and the table of their functions.
 *
 * The header of a model, PREFIX.h, is this text and, after it, the model's own functions, PREFIX_open and the others: one
 * for each member of the table, with its name. Headers of several models can be included in one program, and several
 * libraries linked to it, for every name of a model begins with its prefix (compile --prefix). PREFIX_api() gives the
 * table, for programs that take any model.
 *
 * Handles are independent of each other and may run at the same time; all calls on one handle except close may
 * come from several threads (runs then take turns, and stop() ends them). Functions that can fail return a modelc_status, and
 * last_error() says in a sentence what went wrong in this thread. Strings and tables that are returned live as
 * long as the library is loaded.
 *
 * fork() copies the calling thread alone. A child may open packages of its own, and may exec. It may run a handle that its
 * parent has opened, with all that this keeps, and close it, if at the fork no other thread was in a call on the handle: the
 * child computes in its one thread. To fork beside a thread that runs the handle is not supported: its lock is copied as it
 * is, and the child may wait for ever.
 *
 * A model that is compiled to be free-standing (compile --freestanding) has init and memory_size in the place of open and
 * close: it needs no system, starts no threads and opens no files. Of its calls one may go on at a time in a handle, and
 * last_error() is the program's.
 */
#ifndef MODELC_MODEL_H
#define MODELC_MODEL_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum modelc_status {
    MODELC_OK = 0,
    MODELC_BAD_ARGUMENT = 1, /* a null pointer, a variant or an option out of range */
    MODELC_NO_FILE = 2,      /* a file of the package is missing or cannot be read */
    MODELC_DAMAGED = 3,      /* params.bin has a wrong size or checksum */
    MODELC_MISMATCH = 4,     /* manifest.json and the library come from different builds */
    MODELC_BAD_SCHEMA = 5,   /* manifest.json is of a schema that this library does not know */
    MODELC_NO_CPU = 6,       /* this machine lacks a CPU feature that the kernels use */
    MODELC_NO_MEMORY = 7,    /* memory or threads could not be had */
    MODELC_BAD_DATA = 8,     /* an index or a length in the data is out of range: the sentence says which, and where */
    MODELC_STOPPED = 9,      /* stop() has said so */
    MODELC_INTERRUPTED = 10, /* the function that was given to poll() has said so */
    MODELC_LATE = 11,        /* the run lasted longer than time_limit() allows */
    MODELC_FULL = 12         /* a cache that grows has no room for another run: reset() empties it */
} modelc_status;

typedef enum modelc_dtype {
    MODELC_FLOAT32 = 1,
    MODELC_FLOAT64 = 2,
    MODELC_FLOAT16 = 3,
    MODELC_BFLOAT16 = 4,
    MODELC_INT8 = 5,
    MODELC_INT16 = 6,
    MODELC_INT32 = 7,
    MODELC_INT64 = 8,
    MODELC_UINT8 = 9,
    MODELC_UINT16 = 10,
    MODELC_UINT32 = 11,
    MODELC_UINT64 = 12,
    MODELC_BOOL = 13, /* those that follow take a byte each; of whole numbers its lower bits count */
    MODELC_FLOAT8_E4M3FN = 14,
    MODELC_FLOAT8_E4M3FNUZ = 15,
    MODELC_FLOAT8_E5M2 = 16,
    MODELC_FLOAT8_E5M2FNUZ = 17,
    MODELC_FLOAT8_E8M0FNU = 18,
    MODELC_FLOAT4_E2M1FN = 19,
    MODELC_INT4 = 20,
    MODELC_UINT4 = 21,
    MODELC_INT2 = 22,
    MODELC_UINT2 = 23
} modelc_dtype;

typedef struct modelc_tensor {
    const char *name;
    int32_t dtype; /* a modelc_dtype */
    int32_t rank;
    const int64_t *shape; /* rank extents; elements are in row-major order, without gaps */
    size_t bytes;
} modelc_tensor;

/* A share of a step's work, and threads of the application's for it: parallel_for calls task(arguments, index) for each index
 * from 0 to count - 1, on any threads and in any order, and returns when all these calls have returned. `count` is at most
 * the handle's number of threads, and the bits of the outputs do not depend on who computes what. Shares that it leaves out
 * are computed by the calling thread. It must not call the handle. */
typedef void (*modelc_task)(void *arguments, int32_t index);
typedef void (*modelc_parallel_for)(void *context, modelc_task task, void *arguments, int32_t count);

/* `size` comes first: what a later library adds behind is 0, its default, for a program that does not know it. */
typedef struct modelc_options {
    size_t size;     /* sizeof(modelc_options) */
    int32_t threads; /* 0: as many as the affinity mask and the cgroup's CPU limit allow */
    int32_t check;   /* not 0: compare the checksum of params.bin, which reads all of it */
    uint64_t seed;   /* of the random numbers that the model draws: the first run of a handle, the second, ... draw the
                      * same with the same seed, on any number of threads; a node that has a seed of its own keeps it */
    modelc_parallel_for parallel_for; /* NULL: the handle starts threads of its own; else it starts none */
    void *context;                    /* what parallel_for is called with */
} modelc_options;

typedef struct modelc_step_profile {
    const char *name;
    uint64_t calls;
    uint64_t nanoseconds; /* over all calls */
    double flops;         /* of one call */
    double bytes;         /* moved by one call: what it reads and writes once */
} modelc_step_profile;

typedef struct modelc_handle modelc_handle;

/* Where the data of a run lies. */
typedef struct modelc_frame {
    uint8_t *arena;        /* 64-byte aligned, as are the parameters; users' buffers have any alignment */
    const uint8_t *params;
    const void *const *inputs;
    void *const *outputs;
    const uint64_t *random; /* the handle's seed and the number of the run, which random numbers are made of */
    uint8_t **slots;        /* where control flow lets arguments point */
    int64_t *sizes;         /* of outputs, where they depend on data */
    int64_t iteration;      /* of the steady loop that a step is in: its arguments move with it */
    const int64_t *dims;    /* the sizes of the run, where they are free */
    const uint8_t *made;    /* constants that were made of the parameters when the package was opened; 64-byte aligned */
} modelc_frame;

typedef void (*modelc_watcher)(void *context, int32_t variant, int32_t step, int32_t after, const modelc_frame *frame);

/* Asked by a run on its own thread: not 0 ends it. */
typedef int (*modelc_poller)(void *context);

/* The functions of a model. Those that its library does not have are NULL: a program looks at `size` for what a later
 * header has added at the end. */
typedef struct modelc_api {
    size_t size; /* of this table, in bytes */

    /* Opens the package in folder `path`; where parameters are in the library (compile --embed-params) no file is opened, and
     * it may be NULL. `options` may be NULL for the defaults. */
    modelc_status (*open)(const char *path, const modelc_options *options, modelc_handle **handle);

    /* Waits for a run that goes on, then frees everything. NULL is allowed. */
    void (*close)(modelc_handle *handle);

    /* What the last failed call of this thread has to say. */
    const char *(*last_error)(void);

    /* JSON text: name, build id, target, versions, notes, and, but in a free-standing package, "origin": what the model
       says of itself, with its metadata_props as "metadata". */
    const char *(*metadata)(const modelc_handle *handle);

    int32_t (*thread_count)(const modelc_handle *handle);

    /* A variant is the model compiled for one set of input shapes. Counts are 0 and tensors NULL when out of range. */
    int32_t (*variant_count)(const modelc_handle *handle);
    int32_t (*input_count)(const modelc_handle *handle, int32_t variant);
    int32_t (*output_count)(const modelc_handle *handle, int32_t variant);
    const modelc_tensor *(*input)(const modelc_handle *handle, int32_t variant, int32_t index);
    const modelc_tensor *(*output)(const modelc_handle *handle, int32_t variant, int32_t index);

    /* Computes the outputs from the inputs. Buffers hold at least the tensors' bytes, at the natural alignment of their
     * elements or any other that the machine reads; outputs overlap neither the inputs nor each other. Allocates nothing.
     *
     * Data that an address is computed from (the indices of Gather and Scatter, the lengths of ReverseSequence) is checked
     * before it is used, wherever in the model it comes from; inputs must not change meanwhile. Where it is out of range
     * the run ends with MODELC_BAD_DATA: nothing outside the buffers was read or written, what the outputs hold is of no
     * use, and the handle can be run again. The manifest's "check_addresses" says whether the package was made so. */
    modelc_status (*run)(modelc_handle *handle, int32_t variant, const void *const *inputs, void *const *outputs);

    /* Inputs of other shapes. `shapes` are those of all inputs, in order: as many extents for each as its rank. fit finds
     * the variant that takes them: the one with just these shapes, or one of which sizes are free (compile --dim
     * NAME=1..512). MODELC_BAD_ARGUMENT where there is none: the sentence says what there is. run_shaped runs it on such
     * inputs, row-major and without gaps. Outputs are buffers for the variant's shapes, or as large as these inputs make
     * them: output_shape says what each is. */
    modelc_status (*fit)(const modelc_handle *handle, const int64_t *const *shapes, int32_t *variant);
    modelc_status (*run_shaped)(modelc_handle *handle, int32_t variant, const int64_t *const *shapes,
                                const void *const *inputs, void *const *outputs);

    /* The shape that an output had in the last run of a variant: `shape` gets as many extents as the tensor's rank. Where it
     * depends on data (what NonZero or NonMaxSuppression find), the shape of output() is the most that there can be, which
     * the buffer is for; elements stay where they are in that shape, and beyond the actual one they are of no use. Where
     * inputs have several shapes, or metadata says "any_size", the elements of the actual shape lie without gaps. Where
     * several threads run one handle, the last run may be another's: give each a handle.
     * MODELC_BAD_ARGUMENT before the first run, and after one that failed. */
    modelc_status (*output_shape)(modelc_handle *handle, int32_t variant, int32_t index, int64_t *shape);

    /* What a package keeps between runs (compile --state) is the handle's own, for each variant. It begins with zeros; this
     * makes it zeros again. A cache that grows begins empty, and is emptied; a run that finds it full ends with MODELC_FULL.
     * A run that ends with an error leaves what is kept as it was. */
    modelc_status (*reset)(modelc_handle *handle);

    /* Profiling: between start (which sets the counters to zero) and stop, runs accumulate the time of every step. A
     * free-standing model has no clock, and of these profile_read alone: names, flops and bytes. */
    modelc_status (*profile_start)(modelc_handle *handle);
    modelc_status (*profile_stop)(modelc_handle *handle);
    int32_t (*step_count)(const modelc_handle *handle, int32_t variant);
    modelc_status (*profile_read)(modelc_handle *handle, int32_t variant, int32_t step, modelc_step_profile *profile);

    /* Watching: what every step reads and writes, for tools that check it (modelc verify). The watcher is called on the
     * thread that runs, before (`after` 0) and after each step that is run; what a step's arguments are is said by the
     * manifest, as places in the frame. Memory may be read until the watcher returns. NULL ends it. */
    modelc_status (*watch)(modelc_handle *handle, modelc_watcher watcher, void *context);

    /* Of a free-standing model: the bytes that init wants, aligned to 64; it makes a handle in them, which is there as long
     * as they are. NULL where the memory is not aligned, or the CPU lacks a feature that the kernels use: last_error says
     * so. Of ARM and RISC-V that is known where the program is linked with a C library of Linux or Android, or on macOS. */
    size_t (*memory_size)(void);
    modelc_handle *(*init)(void *memory);

    /* From now on, the run that goes on in a handle and those that begin return MODELC_STOPPED before their next step or
     * iteration of a loop, until `stopped` is 0. What the outputs hold is of no use then, and states are as they were. It
     * waits for nothing and may be called from any thread and from a signal handler, as long as the handle is not closed. A
     * handle that is NULL is allowed. */
    void (*stop)(modelc_handle *handle, int32_t stopped);

    /* From now on runs that last ask `poller` ten times a second between steps, and end with MODELC_INTERRUPTED where it
     * says so: for an interpreter that looks for signals. A free-standing model, which has no clock, asks it before every
     * step and every iteration. NULL ends it. */
    modelc_status (*poll)(modelc_handle *handle, modelc_poller poller, void *context);

    /* As open, with parameters that are not in a folder: what is in params.bin lies at `params`, aligned to 64 bytes, and
     * stays there until the handle is closed; or in the file that is open as `fd`, `offset` bytes (a multiple of 64) behind
     * its beginning, from where it is mapped: the descriptor may be closed then. `bytes` has to be the size of params.bin;
     * for a file, 0 is all behind `offset`. No manifest is read: `check` in the options tells parameters of another build.
     * MODELC_DAMAGED where the size is another; MODELC_BAD_ARGUMENT where parameters are in the library. */
    modelc_status (*open_memory)(const void *params, size_t bytes, const modelc_options *options, modelc_handle **handle);
    modelc_status (*open_fd)(int32_t fd, uint64_t offset, uint64_t bytes, const modelc_options *options,
                             modelc_handle **handle);

    /* From now on a run that lasts longer than so many nanoseconds ends with MODELC_LATE before its next step or iteration
     * of a loop, as one that is stopped. 0 lets runs last. It waits for a run that goes on. */
    modelc_status (*time_limit)(modelc_handle *handle, uint64_t nanoseconds);

    /* From now on the handle draws the random numbers of one that was just opened with this seed. */
    modelc_status (*seed)(modelc_handle *handle, uint64_t seed);
} modelc_api;

#ifdef __cplusplus
}
#endif

#endif
