/* Parameters that are not in the library: of a package's folder, of an open file, or in memory of the application's. */
#define _GNU_SOURCE
#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "modelc_runtime.h"

enum { LINE = 64 };

/* What is in `fd` from `offset` on, read-only, so that all handles and processes share the pages. */
static int map(int fd, uint64_t offset, mc_params *params) {
    const uint64_t before = offset % (uint64_t)sysconf(_SC_PAGESIZE);
    const size_t bytes = (size_t)(before + mc_the_model.params_bytes);
    if (!mc_the_model.params_bytes) return 1;
    uint8_t *memory = mmap(NULL, bytes, PROT_READ, MAP_PRIVATE, fd, (off_t)(offset - before));
    if (memory == MAP_FAILED) return 0;
    *params = (mc_params){memory + before, memory, bytes};
    return 1;
}

modelc_status mc_params_of_folder(const char *folder, mc_params *params) {
    int fd;
    uint64_t bytes;
    modelc_status status = mc_open_file(folder, "params.bin", &fd, &bytes);
    if (status) return status;
    if (bytes != mc_the_model.params_bytes)
        status = mc_fail(MODELC_DAMAGED, "%s/params.bin has %llu bytes instead of %llu: copy the whole package again", folder,
                    (unsigned long long)bytes, (unsigned long long)mc_the_model.params_bytes);
    else if (!map(fd, 0, params))
        status = mc_fail(MODELC_NO_MEMORY, "cannot map %s/params.bin: %s", folder, strerror(errno));
    close(fd);
    return status;
}

static modelc_status check_place(const char *what, uint64_t place, uint64_t bytes) {
    if (mc_the_model.params)
        return mc_fail(MODELC_BAD_ARGUMENT, "the model's parameters are in its library: open it without a folder");
    if (bytes != mc_the_model.params_bytes)
        return mc_fail(MODELC_DAMAGED, "%s has %llu bytes instead of the %llu of the package's params.bin", what,
                    (unsigned long long)bytes, (unsigned long long)mc_the_model.params_bytes);
    if (place % LINE)
        return mc_fail(MODELC_BAD_ARGUMENT, "%s begins %d bytes behind a multiple of %d; parameters are aligned to that",
                    what, (int)(place % LINE), (int)LINE);
    return MODELC_OK;
}

modelc_status mc_params_of_file(int fd, uint64_t offset, uint64_t bytes, mc_params *params) {
    const char *what = "what the descriptor gives";
    const off_t now = lseek(fd, 0, SEEK_CUR), end = lseek(fd, 0, SEEK_END);
    if (now < 0 || end < 0 || lseek(fd, now, SEEK_SET) < 0)
        return mc_fail(MODELC_NO_FILE, "descriptor %d is of no file that can be mapped: %s", fd, strerror(errno));
    if (offset > (uint64_t)end || bytes > (uint64_t)end - offset)
        return mc_fail(MODELC_DAMAGED, "%llu bytes at %llu were named of a file that has %llu", (unsigned long long)bytes,
                    (unsigned long long)offset, (unsigned long long)end);
    const modelc_status status = check_place(what, offset, bytes ? bytes : (uint64_t)end - offset);
    if (status) return status;
    return map(fd, offset, params) ? MODELC_OK : mc_fail(MODELC_NO_MEMORY, "cannot map descriptor %d: %s", fd, strerror(errno));
}

modelc_status mc_params_of_memory(const void *memory, size_t bytes, mc_params *params) {
    if (!memory && bytes) return mc_fail(MODELC_BAD_ARGUMENT, "open_memory wants the parameters, not NULL");
    params->data = memory;
    return check_place("the memory", (uint64_t)(uintptr_t)memory, bytes);
}

modelc_status mc_check_params(const uint8_t *data, const char *folder) {
    uint8_t digest[32];
    mc_sha256(data, (size_t)mc_the_model.params_bytes, digest);
    if (!memcmp(digest, mc_the_model.params_sha256, sizeof digest)) return MODELC_OK;
    if (folder)
        return mc_fail(MODELC_DAMAGED, "%s/params.bin is damaged: its checksum differs from the one in the library; copy "
                    "the whole package again", folder);
    return mc_fail(MODELC_DAMAGED, "the parameters are damaged, or of another build: their checksum differs from the one in "
                "the library");
}

void mc_unmap_params(mc_params params) {
    if (params.mapped) munmap(params.mapped, params.mapped_bytes);
}
