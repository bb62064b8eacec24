/* How many CPUs this process may use. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "modelc_runtime.h"

/* By the system call, which says how much of the mask it has: C libraries have their own masks, of their own sizes. */
int32_t mc_cpu_affinity(void) {
    uint8_t mask[8192];
    const long bytes = syscall(SYS_sched_getaffinity, 0, sizeof mask, mask);
    int32_t count = 0;
    for (long i = 0; i < bytes; i++) count += __builtin_popcount(mask[i]);
    return count ? count : 1;
}

/* The whole number that comes next; 0 where there is none. Not by sscanf, which C libraries have under several names. */
static double number_at(const char **text) {
    double number = 0;
    while (**text == ' ') (*text)++;
    while (**text >= '0' && **text <= '9') number = 10 * number + (*(*text)++ - '0');
    return number;
}

/* Quota over period, in CPUs, of one cgroup folder; 0 when it sets no limit. */
static double quota_of(const char *folder, int version) {
    char name[4352], text[64];
    double quota = 0, period = 0;
    const char *at = text;
    const char *files[2] = {"cpu.cfs_quota_us", "cpu.cfs_period_us"};
    for (int i = 0; i < (version == 2 ? 1 : 2); i++) {
        snprintf(name, sizeof name, "%s/%s", folder, version == 2 ? "cpu.max" : files[i]);
        FILE *file = fopen(name, "re");
        if (!file) return 0;
        if (!fgets(text, sizeof text, file)) text[0] = 0;
        at = text;
        fclose(file);
        if (version == 2) {
            quota = number_at(&at); /* "max 100000" is no number */
            period = number_at(&at);
        } else {
            *(i ? &period : &quota) = number_at(&at);
        }
    }
    return quota > 0 && period > 0 ? quota / period : 0;
}

/* The smallest quota of the process's cgroup and its parents. Inside a container the path that /proc gives may not
 * exist below the mount point; the walk then ends at the mount point itself, which is the container's own group. */
static double least_quota(const char *mount, const char *group, int version) {
    char folder[4224];
    double least = 0;
    snprintf(folder, sizeof folder, "%s%s", mount, group);
    for (size_t root = strlen(mount);;) {
        double quota = quota_of(folder, version);
        if (quota > 0 && (least == 0 || quota < least)) least = quota;
        char *slash = strrchr(folder, '/');
        if (!slash || (size_t)(slash - folder) < root) return least;
        *slash = 0;
    }
}

static double cgroup_quota(void) {
    char line[4160], mount[256];
    double least = 0;
    FILE *file = fopen("/proc/self/cgroup", "re");
    if (!file) return 0;
    while (fgets(line, sizeof line, file)) { /* "0::/group" is version 2, "4:cpu,cpuacct:/group" version 1 */
        char *controllers = strchr(line, ':'), *group = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!group) continue;
        *group++ = 0;
        controllers++;
        group[strcspn(group, "\n")] = 0;
        double quota = 0;
        if (!*controllers) {
            quota = least_quota("/sys/fs/cgroup", group, 2);
        } else if (strstr(controllers, "cpu") && !strstr(controllers, "cpuset")) {
            snprintf(mount, sizeof mount, "/sys/fs/cgroup/%s", controllers);
            quota = least_quota(mount, group, 1);
        }
        if (quota > 0 && (least == 0 || quota < least)) least = quota;
    }
    fclose(file);
    return least;
}

int32_t mc_cpu_limit(void) {
    int32_t cpus = mc_cpu_affinity();
    double quota = cgroup_quota();
    /* Rounded down: a thread more than the quota pays for stalls all of them when the period's share is spent. */
    if (quota > 0 && quota < cpus) cpus = quota < 1 ? 1 : (int32_t)quota;
    return cpus;
}
