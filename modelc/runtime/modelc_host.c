/* Where there is a system: handles are opened and closed, take turns by a lock, and run steps on threads of their own. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "modelc_runtime.h"

enum { MOST_THREADS = 1024 };

struct mc_host {
    pthread_mutex_t lock; /* one run at a time; also guards the counters */
    mc_pool *pool;
    uint8_t *memory; /* all of the handle's but the threads' workspaces */
    const uint8_t *mapped; /* params.bin */
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

/* Mapped read-only, so all handles and processes share the pages. */
static modelc_status map_params(modelc_handle *handle, const char *folder, int check) {
    int fd;
    uint64_t bytes, expected = mc_the_model.params_bytes;
    uint8_t digest[32];
    modelc_status status = mc_open_file(folder, "params.bin", &fd, &bytes);
    if (status) return status;
    if (bytes != expected) {
        close(fd);
        return mc_fail(MODELC_DAMAGED, "%s/params.bin has %llu bytes instead of %llu: copy the whole package again", folder,
                    (unsigned long long)bytes, (unsigned long long)expected);
    }
    if (bytes) {
        void *memory = mmap(NULL, (size_t)bytes, PROT_READ, MAP_PRIVATE, fd, 0);
        int error = errno;
        close(fd);
        if (memory == MAP_FAILED) return mc_fail(MODELC_NO_MEMORY, "cannot map %s/params.bin: %s", folder, strerror(error));
        handle->params = handle->host->mapped = memory;
    } else {
        close(fd);
    }
    if (check) {
        mc_sha256(handle->params, (size_t)bytes, digest);
        if (memcmp(digest, mc_the_model.params_sha256, sizeof digest))
            return mc_fail(MODELC_DAMAGED, "%s/params.bin is damaged: its checksum differs from the one in the library; copy "
                        "the whole package again", folder);
    }
    return MODELC_OK;
}

static modelc_status reserve(modelc_handle *handle) {
    uint64_t bytes = mc_place(handle, NULL, 1);
    /* More than half of a 32-bit address space cannot be had, and would not fit size_t. */
    if (bytes <= SIZE_MAX / 2) handle->host->memory = mc_map_zeroed((size_t)bytes);
    if (!handle->host->memory)
        return mc_fail(MODELC_NO_MEMORY, "cannot reserve %llu bytes for the arena, states and tables",
                    (unsigned long long)bytes);
    mc_place(handle, handle->host->memory, 1);
    handle->host->pool = mc_pool_open(handle->threads, (size_t)mc_the_model.scratch_bytes, mc_the_model.flush_denormals);
    if (!handle->host->pool)
        return mc_fail(MODELC_NO_MEMORY, "cannot start %d threads with %llu bytes of workspace each", (int)handle->threads,
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

void modelc_close(modelc_handle *handle);

modelc_status modelc_open(const char *path, const modelc_options *options, modelc_handle **handle) {
    modelc_options chosen;
    modelc_status status;
    if (!handle) return mc_fail(MODELC_BAD_ARGUMENT, "open wants a place for the handle, not NULL");
    *handle = NULL;
    if (!path && !mc_the_model.params) return mc_fail(MODELC_BAD_ARGUMENT, "open wants the package's folder, not NULL");
    if ((status = read_options(options, &chosen))) return status;
    if (chosen.threads < 0 || chosen.threads > MOST_THREADS)
        return mc_fail(MODELC_BAD_ARGUMENT, "%d threads were asked for; 1 to %d can be had, or 0 for the default",
                    (int)chosen.threads, (int)MOST_THREADS);
    if ((!mc_the_model.params && (status = mc_check_manifest(path))) || (status = mc_check_cpu())) return status;
    modelc_handle *made = calloc(1, sizeof *made);
    struct mc_host *host = calloc(1, sizeof *host);
    if (!made || !host) {
        free(made);
        free(host);
        return mc_fail(MODELC_NO_MEMORY, "out of memory");
    }
    made->host = host;
    pthread_mutex_init(&host->lock, NULL);
    made->random[0] = chosen.seed;
    made->params = mc_the_model.params;
    made->threads = chosen.threads ? chosen.threads : mc_cpu_limit();
    if (made->threads > MOST_THREADS) made->threads = MOST_THREADS;
    if ((!made->params && (status = map_params(made, path, chosen.check))) || (status = reserve(made))) {
        modelc_close(made);
        return status;
    }
    *handle = made;
    return MODELC_OK;
}

void modelc_close(modelc_handle *handle) {
    if (!handle) return;
    struct mc_host *host = handle->host;
    pthread_mutex_lock(&host->lock); /* a run that goes on ends first */
    mc_pool_close(host->pool);
    pthread_mutex_unlock(&host->lock);
    pthread_mutex_destroy(&host->lock);
    if (host->memory) mc_unmap(host->memory, (size_t)mc_place(handle, NULL, 1));
    if (host->mapped) munmap((void *)(uintptr_t)host->mapped, (size_t)mc_the_model.params_bytes);
    free(host);
    free(handle);
}

modelc_status modelc_poll(modelc_handle *handle, modelc_poller poller, void *context) {
    if (!handle) return mc_fail(MODELC_BAD_ARGUMENT, "the handle is NULL");
    mc_lock(handle);
    handle->poller = poller;
    handle->polled = context;
    mc_unlock(handle);
    return MODELC_OK;
}
