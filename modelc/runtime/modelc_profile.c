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

modelc_status modelc_profile_read(modelc_handle *handle, int32_t variant, int32_t step, modelc_step_profile *profile) {
    const mc_variant *v = handle ? mc_variant_of(handle, variant) : NULL;
    if (!v) return mc_no_such_variant(handle, variant);
    if (step < 0 || step >= v->step_count || !profile)
        return mc_fail(MODELC_BAD_ARGUMENT, "step %d was asked for; variant %d has %d", (int)step, (int)variant,
                    (int)v->step_count);
    mc_lock(handle);
    mc_counter counter = handle->counters[variant][step];
    mc_unlock(handle);
    const mc_step *s = &v->steps[step];
    *profile = (modelc_step_profile){s->name, counter.calls, counter.nanoseconds, s->flops, s->bytes};
    return MODELC_OK;
}

