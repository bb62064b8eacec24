/* Runs that last: how long they may, and whether they are to go on, by the clock of the system. */
#include "modelc_runtime.h"

static const uint64_t POLL_NANOSECONDS = 100000000;

modelc_status mc_ask(modelc_handle *handle) {
    const uint64_t now = mc_now();
    if (!handle->began) handle->began = handle->asked = now;
    if (handle->limit && now - handle->began > handle->limit)
        return mc_fail(MODELC_LATE, "the run lasted longer than its limit of %llu nanoseconds",
                    (unsigned long long)handle->limit);
    if (!handle->poller || now - handle->asked < POLL_NANOSECONDS) return MODELC_OK;
    handle->asked = now;
    return handle->poller(handle->polled) ? mc_fail(MODELC_INTERRUPTED, "the run was interrupted") : MODELC_OK;
}

modelc_status modelc_time_limit(modelc_handle *handle, uint64_t nanoseconds) {
    if (!handle) return mc_fail(MODELC_BAD_ARGUMENT, "the handle is NULL");
    mc_lock(handle);
    handle->limit = nanoseconds;
    mc_unlock(handle);
    return MODELC_OK;
}
