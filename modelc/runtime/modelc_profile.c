/* Profiling: what each step has taken, by the clock of the system. */
#include <string.h>

#include "modelc_runtime.h"

modelc_status modelc_profile_start(modelc_handle *handle) {
    if (!handle) return mc_fail(MODELC_BAD_ARGUMENT, "the handle is NULL");
    mc_lock(handle);
    for (int32_t v = 0; v < mc_the_model.variant_count; v++)
        memset(handle->counters[v], 0, (size_t)mc_the_model.variants[v].step_count * sizeof(mc_counter));
    handle->profiling = 1;
    mc_unlock(handle);
    return MODELC_OK;
}

modelc_status modelc_profile_stop(modelc_handle *handle) {
    if (!handle) return mc_fail(MODELC_BAD_ARGUMENT, "the handle is NULL");
    mc_lock(handle);
    handle->profiling = 0;
    mc_unlock(handle);
    return MODELC_OK;
}
