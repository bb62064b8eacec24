/* Floating-point control of a thread. */
#include "modelc_runtime.h"

/* Set in full rather than added to what is there: new threads inherit these bits from whoever opened the package, and
 * results would depend on it. */
uint64_t mc_float_enter(int flush_denormals) {
#if defined(__x86_64__)
    uint32_t saved = __builtin_ia32_stmxcsr();
    __builtin_ia32_ldmxcsr(0x1f80u | (flush_denormals ? 0x8040u : 0)); /* FTZ, DAZ */
    return saved;
#elif defined(__aarch64__)
    uint64_t saved, set = flush_denormals ? 1u << 24 : 0;
    __asm__ volatile("mrs %0, fpcr" : "=r"(saved));
    __asm__ volatile("msr fpcr, %0" ::"r"(set));
    return saved;
#elif defined(__riscv)
    uint64_t saved;
    (void)flush_denormals; /* RISC-V cannot flush them */
    __asm__ volatile("csrrw %0, fcsr, zero" : "=r"(saved));
    return saved;
#elif defined(__arm__)
    uint32_t saved, set = flush_denormals ? 1u << 24 : 0;
    __asm__ volatile("vmrs %0, fpscr" : "=r"(saved));
    __asm__ volatile("vmsr fpscr, %0" ::"r"(set));
    return saved;
#else
    (void)flush_denormals; /* WebAssembly has one way to compute */
    return 0;
#endif
}

void mc_float_leave(uint64_t saved) {
#if defined(__x86_64__)
    __builtin_ia32_ldmxcsr((uint32_t)saved);
#elif defined(__aarch64__)
    __asm__ volatile("msr fpcr, %0" ::"r"(saved));
#elif defined(__riscv)
    __asm__ volatile("csrw fcsr, %0" ::"r"(saved));
#elif defined(__arm__)
    __asm__ volatile("vmsr fpscr, %0" ::"r"((uint32_t)saved));
#else
    (void)saved;
#endif
}
