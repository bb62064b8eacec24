/* Where there is no system: a handle lies in the caller's memory, with everything that it needs. One call at a time. */
#include <string.h>

#include "modelc_runtime.h"

enum { LINE = 64 };

static char message[MC_MESSAGE_BYTES];

char *mc_message(void) { return message; }

void mc_lock(modelc_handle *handle) { (void)handle; }

void mc_unlock(modelc_handle *handle) { (void)handle; }

uint64_t mc_now(void) { return 0; } /* nobody profiles */

void mc_run_shared(const modelc_handle *handle, const mc_step *step, const mc_frame *frame) {
    step->run(frame, handle->scratch, 0, mc_extent_in(step, frame));
}

modelc_status mc_ask(modelc_handle *handle) {
    return handle->poller(handle->polled) ? mc_fail(MODELC_INTERRUPTED, "the run was interrupted") : MODELC_OK;
}

static uint64_t own_bytes(void) { return (sizeof(modelc_handle) + LINE - 1) / LINE * LINE; }

static uint64_t scratch_bytes(void) { return (mc_the_model.scratch_bytes + LINE - 1) / LINE * LINE; }

size_t modelc_memory_size(void) { return (size_t)(own_bytes() + scratch_bytes() + mc_place(NULL, NULL, 0)); }

modelc_handle *modelc_init(void *memory) {
    if (!memory || (uintptr_t)memory % LINE) {
        mc_fail(MODELC_BAD_ARGUMENT, "init wants memory that is aligned to %d bytes, not %s", (int)LINE,
                memory ? "this" : "NULL");
        return NULL;
    }
    if (mc_check_cpu()) return NULL;
    memset(memory, 0, modelc_memory_size());
    modelc_handle *handle = memory;
    handle->params = mc_the_model.params;
    handle->threads = 1;
    handle->scratch = (uint8_t *)memory + own_bytes();
    mc_place(handle, handle->scratch + scratch_bytes(), 0);
    return handle;
}
