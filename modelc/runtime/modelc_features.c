/* Whether this machine has the CPU features that the kernels use, by their LLVM names. Free-standing models ask too: on
 * x86-64 the CPU itself, elsewhere the system that their program is linked with, if there is one. */
#define _GNU_SOURCE
#if __STDC_HOSTED__
#include <stdlib.h>
#include <string.h>
#endif

#include "modelc_runtime.h"

#if defined(__x86_64__)
#include <cpuid.h>
#if __STDC_HOSTED__
#include <sys/syscall.h>
#include <unistd.h>
#endif

enum { EAX, EBX, ECX, EDX };
enum { NO_STATE = 0, AVX = 0x6, AVX512 = 0xe6, AMX = 0x60000 }; /* bits of XCR0 that the system must have enabled */

static const struct feature {
    const char *name;
    uint32_t leaf, subleaf;
    int reg, bit;
    uint64_t state;
} features[] = {
    {"cx8", 1, 0, EDX, 8, NO_STATE},
    {"cmov", 1, 0, EDX, 15, NO_STATE},
    {"mmx", 1, 0, EDX, 23, NO_STATE},
    {"fxsr", 1, 0, EDX, 24, NO_STATE},
    {"sse", 1, 0, EDX, 25, NO_STATE},
    {"sse2", 1, 0, EDX, 26, NO_STATE},
    {"sse3", 1, 0, ECX, 0, NO_STATE},
    {"pclmul", 1, 0, ECX, 1, NO_STATE},
    {"ssse3", 1, 0, ECX, 9, NO_STATE},
    {"fma", 1, 0, ECX, 12, AVX},
    {"cx16", 1, 0, ECX, 13, NO_STATE},
    {"sse41", 1, 0, ECX, 19, NO_STATE},
    {"sse42", 1, 0, ECX, 20, NO_STATE},
    {"movbe", 1, 0, ECX, 22, NO_STATE},
    {"popcnt", 1, 0, ECX, 23, NO_STATE},
    {"aes", 1, 0, ECX, 25, NO_STATE},
    {"xsave", 1, 0, ECX, 26, NO_STATE},
    {"avx", 1, 0, ECX, 28, AVX},
    {"f16c", 1, 0, ECX, 29, AVX},
    {"bmi", 7, 0, EBX, 3, NO_STATE},
    {"avx2", 7, 0, EBX, 5, AVX},
    {"bmi2", 7, 0, EBX, 8, NO_STATE},
    {"avx512f", 7, 0, EBX, 16, AVX512},
    {"avx512dq", 7, 0, EBX, 17, AVX512},
    {"adx", 7, 0, EBX, 19, NO_STATE},
    {"avx512ifma", 7, 0, EBX, 21, AVX512},
    {"avx512cd", 7, 0, EBX, 28, AVX512},
    {"sha", 7, 0, EBX, 29, NO_STATE},
    {"avx512bw", 7, 0, EBX, 30, AVX512},
    {"avx512vl", 7, 0, EBX, 31, AVX512},
    {"avx512vbmi", 7, 0, ECX, 1, AVX512},
    {"avx512vbmi2", 7, 0, ECX, 6, AVX512},
    {"gfni", 7, 0, ECX, 8, NO_STATE},
    {"vaes", 7, 0, ECX, 9, AVX},
    {"vpclmulqdq", 7, 0, ECX, 10, AVX},
    {"avx512vnni", 7, 0, ECX, 11, AVX512},
    {"avx512bitalg", 7, 0, ECX, 12, AVX512},
    {"avx512vpopcntdq", 7, 0, ECX, 14, AVX512},
    {"avx512vp2intersect", 7, 0, EDX, 8, AVX512},
    {"amxbf16", 7, 0, EDX, 22, AMX},
    {"avx512fp16", 7, 0, EDX, 23, AVX512},
    {"amxtile", 7, 0, EDX, 24, AMX},
    {"amxint8", 7, 0, EDX, 25, AMX},
    {"avxvnni", 7, 1, EAX, 4, AVX},
    {"avx512bf16", 7, 1, EAX, 5, AVX512},
    {"amxfp16", 7, 1, EAX, 21, AMX},
    {"avxifma", 7, 1, EAX, 23, AVX},
    {"avxvnniint8", 7, 1, EDX, 4, AVX},
    {"avxneconvert", 7, 1, EDX, 5, AVX},
    {"avxvnniint16", 7, 1, EDX, 10, AVX},
    {"sahf", 0x80000001, 0, ECX, 0, NO_STATE},
    {"lzcnt", 0x80000001, 0, ECX, 5, NO_STATE},
    {"prfchw", 0x80000001, 0, ECX, 8, NO_STATE},
};

static uint64_t enabled_states(void) {
    uint32_t r[4], low, high;
    if (!__get_cpuid(1, &r[EAX], &r[EBX], &r[ECX], &r[EDX]) || !(r[ECX] >> 27 & 1)) return 0; /* OSXSAVE */
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (uint64_t)high << 32 | low;
}

static mc_cpu_answer has(const struct feature *f) {
    uint32_t r[4];
    if (!__get_cpuid_count(f->leaf, f->subleaf, &r[EAX], &r[EBX], &r[ECX], &r[EDX]) || !(r[f->reg] >> f->bit & 1))
        return MC_CPU_LACKS;
#if __STDC_HOSTED__
    if (f->state == AMX && (enabled_states() & AMX) == AMX) { /* Linux wants to be asked, once per process */
        enum { ARCH_REQ_XCOMP_PERM = 0x1023, XTILE_DATA = 18 };
        return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XTILE_DATA) ? MC_CPU_REFUSED : MC_CPU_HAS;
    }
#endif
    return (enabled_states() & f->state) == f->state ? MC_CPU_HAS : MC_CPU_LACKS;
}

#elif defined(__aarch64__) && defined(__APPLE__)
int sysctlbyname(const char *name, void *value, size_t *bytes, void *new_value, size_t new_bytes);

static const struct feature {
    const char *name, *key; /* of macOS; NULL: every one of its machines has it */
} features[] = {
    {"fparmv8", NULL}, {"neon", NULL}, {"asimd", NULL}, {"crc", NULL}, {"aes", NULL}, {"sha2", NULL},
    {"lse", "hw.optional.arm.FEAT_LSE"}, {"rdm", "hw.optional.arm.FEAT_RDM"}, {"rcpc", "hw.optional.arm.FEAT_LRCPC"},
    {"fullfp16", "hw.optional.arm.FEAT_FP16"}, {"fp16fml", "hw.optional.arm.FEAT_FHM"},
    {"dotprod", "hw.optional.arm.FEAT_DotProd"}, {"i8mm", "hw.optional.arm.FEAT_I8MM"},
    {"bf16", "hw.optional.arm.FEAT_BF16"}, {"sme", "hw.optional.arm.FEAT_SME"},
};

static mc_cpu_answer has(const struct feature *f) {
    int there = 0;
    size_t bytes = sizeof there;
    if (!f->key) return MC_CPU_HAS;
    return !sysctlbyname(f->key, &there, &bytes, NULL, 0) && there ? MC_CPU_HAS : MC_CPU_LACKS;
}

#elif defined(__aarch64__) || defined(__arm__)
#if __STDC_HOSTED__
#include <sys/auxv.h>
#else
enum { AT_HWCAP = 16, AT_HWCAP2 = 26 };
unsigned long getauxval(unsigned long) __attribute__((weak)); /* which C libraries of Linux and Android have */
#define CAN_ASK (getauxval != 0)
#endif

static const struct feature {
    const char *name;
    int word, bit; /* of AT_HWCAP (word 1) or AT_HWCAP2 (word 2), from the kernel's asm/hwcap.h */
} features[] = {
#if defined(__aarch64__)
    {"fparmv8", 1, 0}, {"neon", 1, 1},      {"asimd", 1, 1},   {"aes", 1, 3},       {"sha2", 1, 6},
    {"crc", 1, 7},     {"lse", 1, 8},       {"fullfp16", 1, 10}, {"rdm", 1, 12},    {"rcpc", 1, 15},
    {"dotprod", 1, 20}, {"sve", 1, 22},     {"fp16fml", 1, 23}, {"sve2", 2, 1},     {"i8mm", 2, 13},
    {"bf16", 2, 14},   {"sme", 2, 23},
#else
    {"vfp2", 1, 6},    {"neon", 1, 12},     {"vfp3", 1, 13},   {"vfp4", 1, 16},     {"hwdivarm", 1, 17},
    {"hwdiv", 1, 18},  {"d32", 1, 19},      {"fullfp16", 1, 23}, {"dotprod", 1, 24}, {"fp16fml", 1, 25},
    {"bf16", 1, 26},   {"i8mm", 1, 27},     {"aes", 2, 0},     {"sha2", 2, 3},      {"crc", 2, 4},
#endif
};

static mc_cpu_answer has(const struct feature *f) {
    return getauxval(f->word == 1 ? AT_HWCAP : AT_HWCAP2) >> f->bit & 1 ? MC_CPU_HAS : MC_CPU_LACKS;
}

#elif defined(__riscv) && __STDC_HOSTED__
#include <errno.h>
#include <signal.h>
#include <sys/auxv.h>
#include <sys/wait.h>
#include <unistd.h>

static const struct feature {
    const char *name;
    int letter; /* AT_HWCAP has a bit for each */
} features[] = {{"m", 'm'}, {"a", 'a'}, {"f", 'f'}, {"d", 'd'}, {"c", 'c'}, {"v", 'v'}};

/* The kernel names V since 6.5, as qemu does since 8.1. Where it does not, a process of its own tries an instruction
 * that only V 1.0 has: `vsetivli zero, 4, e32, m1, ta, ma`. */
static mc_cpu_answer try_vectors(void) {
    pid_t child = fork();
    if (child == 0) {
        signal(SIGILL, SIG_DFL);
        __asm__ volatile(".4byte 0xcd027057");
        _exit(0);
    }
    int status = -1;
    while (child > 0 && waitpid(child, &status, 0) < 0 && errno == EINTR) continue; /* a signal of the application's */
    return status == 0 ? MC_CPU_HAS : MC_CPU_LACKS;
}

static mc_cpu_answer has(const struct feature *f) {
    if (getauxval(AT_HWCAP) >> (f->letter - 'a') & 1) return MC_CPU_HAS;
    return f->letter == 'v' ? try_vectors() : MC_CPU_LACKS;
}

#elif __STDC_HOSTED__
#error "modelc's runtime knows x86-64, AArch64, ARM and RISC-V"
#else /* a free-standing model for a CPU that can only be asked through a system */
static const struct feature {
    const char *name;
} features[1];

static mc_cpu_answer has(const struct feature *f) { return f ? MC_CPU_HAS : MC_CPU_LACKS; }
#define CAN_ASK 0
#endif

#ifndef CAN_ASK
#define CAN_ASK 1
#endif

/* Whether MODELC_EMULATED, names with spaces between them, has this one: who emulates instructions below this process
 * (package/emulators.py) says so there, for it cannot change what CPUID answers. */
static int is_emulated(const char *name) {
#if __STDC_HOSTED__
    const char *names = secure_getenv("MODELC_EMULATED");
    size_t length = strlen(name);
    for (; names && *names; names += strcspn(names, " "), names += strspn(names, " "))
        if (strcspn(names, " ") == length && !memcmp(names, name, length)) return 1;
#else
    (void)name;
#endif
    return 0;
}

/* Whether `name` is `plain` with punctuation: "+avx512_vnni", "sse4.1", "amx-int8". */
static int is_called(const char *name, const char *plain) {
    for (; *name; name++) {
        if (*name == '+' || *name == '-' || *name == '_' || *name == '.') continue;
        if (*name != *plain++) return 0;
    }
    return !*plain;
}

mc_cpu_answer mc_cpu_has(const char *name) {
    if (!CAN_ASK) return MC_CPU_HAS;
    for (size_t i = 0; i < sizeof features / sizeof *features; i++)
        if (features[i].name && is_called(name, features[i].name)) {
            mc_cpu_answer answer = has(&features[i]);
            return answer == MC_CPU_LACKS && is_emulated(name) ? MC_CPU_HAS : answer;
        }
    return MC_CPU_UNKNOWN_NAME;
}
