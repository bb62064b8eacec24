/* Whether this machine can run the model. */
#if __STDC_HOSTED__
#include <errno.h>
#include <string.h>
#endif

#include "modelc_runtime.h"

modelc_status mc_check_cpu(void) {
    const char *reason = "";
    for (const char *const *feature = mc_the_model.features; *feature; feature++) {
        switch (mc_cpu_has(*feature)) {
        case MC_CPU_HAS: break;
        case MC_CPU_LACKS:
            return mc_fail(MODELC_NO_CPU, "the package needs the CPU feature '%s', which this machine lacks: compile the "
                        "model for this machine", *feature);
        case MC_CPU_UNKNOWN_NAME:
            return mc_fail(MODELC_NO_CPU, "the package needs the CPU feature '%s', which is not known for this kind of "
                        "machine", *feature);
        case MC_CPU_REFUSED:
#if __STDC_HOSTED__
            reason = strerror(errno);
#endif
            return mc_fail(MODELC_NO_CPU, "the package needs the CPU feature '%s', which the operating system refuses to "
                        "this process: %s", *feature, reason);
        }
    }
    return MODELC_OK;
}
