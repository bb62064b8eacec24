/* Where there is a system: handles are opened and closed, take turns by a lock, and run steps on threads of their own. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "modelc_runtime.h"

enum { MOST_THREADS = 1024 };

struct mc_host {
    pthread_mutex_t lock; /* one run at a time; also guards the counters */
    mc_pool *pool;
    uint8_t *memory; /* all of the handle's but the threads' workspaces */
    mc_params params;
};

static _Thread_local char message[MC_MESSAGE_BYTES];

char *mc_message(void) { return message; }

void mc_lock(modelc_handle *handle) {
    pthread_mutex_lock(&handle->host->lock);
    mc_pool_enter(handle->host->pool);
}

void mc_unlock(modelc_handle *handle) { pthread_mutex_unlock(&handle->host->lock); }

void mc_run_shared(const modelc_handle *handle, const mc_step *step, const mc_frame *frame) {
    mc_pool_run(handle->host->pool, step, frame);
}

static modelc_status reserve(modelc_handle *handle, const modelc_options *options) {
    uint64_t bytes = mc_place(handle, NULL, 1);
    /* More than half of a 32-bit address space cannot be had, and would not fit size_t. */
    if (bytes <= SIZE_MAX / 2) handle->host->memory = mc_map_zeroed((size_t)bytes);
    if (!handle->host->memory)
        return mc_fail(MODELC_NO_MEMORY, "cannot reserve %llu bytes for the arena, states and tables",
                    (unsigned long long)bytes);
    mc_place(handle, handle->host->memory, 1);
    handle->host->pool = mc_pool_open(options, (size_t)mc_the_model.scratch_bytes, mc_the_model.flush_denormals);
    if (!handle->host->pool)
        return mc_fail(MODELC_NO_MEMORY, "cannot start %d threads with %llu bytes of workspace each", (int)options->threads,
                    (unsigned long long)mc_the_model.scratch_bytes);
    return MODELC_OK;
}

/* The options as this library knows them: what a program does not know is 0, and what this library does not know has to be. */
static modelc_status read_options(const modelc_options *given, modelc_options *chosen) {
    *chosen = (modelc_options){.size = sizeof *chosen};
    if (!given) return MODELC_OK;
    if (given->size < offsetof(modelc_options, check) || given->size > 1 << 16)
        return mc_fail(MODELC_BAD_ARGUMENT, "options.size is %zu; it has to be sizeof(modelc_options), %zu in this library",
                    given->size, sizeof *chosen);
    for (size_t i = sizeof *chosen; i < given->size; i++)
        if (((const uint8_t *)given)[i])
            return mc_fail(MODELC_BAD_ARGUMENT, "the options have %zu bytes, of which this library knows %zu, and say more: "
                        "compile the model again with a modelc of the program's header", given->size, sizeof *chosen);
    memcpy(chosen, given, given->size < sizeof *chosen ? given->size : sizeof *chosen);
    return MODELC_OK;
}

/* What is asked before there are parameters; the threads that are chosen are a number of them. */
static modelc_status begin(const modelc_options *given, modelc_options *chosen, modelc_handle **handle) {
    modelc_status status;
    if (!handle) return mc_fail(MODELC_BAD_ARGUMENT, "open wants a place for the handle, not NULL");
    *handle = NULL;
    if ((status = read_options(given, chosen))) return status;
    if (chosen->threads < 0 || chosen->threads > MOST_THREADS)
        return mc_fail(MODELC_BAD_ARGUMENT, "%d threads were asked for; 1 to %d can be had, or 0 for the default",
                    (int)chosen->threads, (int)MOST_THREADS);
    if (!chosen->threads) chosen->threads = mc_cpu_limit();
    if (chosen->threads > MOST_THREADS) chosen->threads = MOST_THREADS;
    return MODELC_OK;
}

void modelc_close(modelc_handle *handle);

/* A handle on parameters, which it unmaps in the end; `status` says whether they could be had. */
static modelc_status finish(modelc_status status, mc_params params, const modelc_options *chosen, const char *folder,
                            modelc_handle **handle) {
    if (!status && chosen->check && !mc_the_model.params) status = mc_check_params(params.data, folder);
    modelc_handle *made = status ? NULL : calloc(1, sizeof *made);
    struct mc_host *host = made ? calloc(1, sizeof *host) : NULL;
    if (!host) {
        free(made);
        mc_unmap_params(params);
        return status ? status : mc_fail(MODELC_NO_MEMORY, "out of memory");
    }
    made->host = host;
    pthread_mutex_init(&host->lock, NULL);
    host->params = params;
    made->params = params.data;
    made->random[0] = chosen->seed;
    made->threads = chosen->threads;
    if ((status = reserve(made, chosen)) || (status = mc_made_open(made))) modelc_close(made);
    else *handle = made;
    return status;
}

modelc_status modelc_open(const char *path, const modelc_options *options, modelc_handle **handle) {
    modelc_options chosen;
    mc_params params = {.data = mc_the_model.params};
    modelc_status status = begin(options, &chosen, handle);
    if (!status && !path && !params.data)
        status = mc_fail(MODELC_BAD_ARGUMENT, "open wants the package's folder, not NULL");
    if (status || (!params.data && (status = mc_check_manifest(path))) || (status = mc_check_cpu())) return status;
    if (!params.data) status = mc_params_of_folder(path, &params);
    return finish(status, params, &chosen, path, handle);
}

modelc_status modelc_open_memory(const void *memory, size_t bytes, const modelc_options *options, modelc_handle **handle) {
    modelc_options chosen;
    mc_params params = {0};
    modelc_status status = begin(options, &chosen, handle);
    if (status || (status = mc_check_cpu())) return status;
    status = mc_params_of_memory(memory, bytes, &params);
    return finish(status, params, &chosen, NULL, handle);
}

modelc_status modelc_open_fd(int32_t fd, uint64_t offset, uint64_t bytes, const modelc_options *options,
                             modelc_handle **handle) {
    modelc_options chosen;
    mc_params params = {0};
    modelc_status status = begin(options, &chosen, handle);
    if (status || (status = mc_check_cpu())) return status;
    status = mc_params_of_file(fd, offset, bytes, &params);
    return finish(status, params, &chosen, NULL, handle);
}

void modelc_close(modelc_handle *handle) {
    if (!handle) return;
    struct mc_host *host = handle->host;
    pthread_mutex_lock(&host->lock); /* a run that goes on ends first */
    mc_pool_close(host->pool);
    pthread_mutex_unlock(&host->lock);
    mc_made_close(handle);
    pthread_mutex_destroy(&host->lock);
    if (host->memory) mc_unmap(host->memory, (size_t)mc_place(handle, NULL, 1));
    mc_unmap_params(host->params);
    free(host);
    free(handle);
}
