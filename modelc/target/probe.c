/* Measures the core it runs on: cycle time, FMA latency and throughput, the throughput of intrinsics (by the names that
 * they have in targets/intrinsics), and read bandwidth per working set.
 *
 *     probe THREADS BYTES...    one line "name value" each; the last working set is memory, read by all THREADS
 *                               (memory) and by one alone (core_memory)
 *     probe --only NAME THREADS MILLISECONDS    the nanoseconds of an instruction, of each of THREADS at once
 *
 * Every figure is the best of many short runs, as whatever else the machine does only makes them slower (of memory the
 * median of the best third: see read_slice); with --only it is the median, to be compared with the medians of what else
 * is timed by turns with it. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#if defined(__AVX512F__)
enum { VECTOR = 64 };
#elif defined(__AVX2__)
enum { VECTOR = 32 };
#else
enum { VECTOR = 16 };
#endif
typedef float vector __attribute__((vector_size(VECTOR)));
typedef uint64_t words __attribute__((vector_size(VECTOR), may_alias));

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e9 + t.tv_nsec;
}

/* One instruction on accumulator `c`: assembly, so that no compiler rewrites what is timed. */
#if defined(__x86_64__) && defined(__FMA__)
#define FLOAT32(c) __asm__ volatile("vfmadd231ps %1, %2, %0" : "+v"(c) : "v"(a), "v"(b));
#elif defined(__aarch64__)
#define FLOAT32(c) __asm__ volatile("fmla %0.4s, %1.4s, %2.4s" : "+w"(c) : "w"(a), "w"(b));
#elif defined(__ARM_FEATURE_FMA)
#define FLOAT32(c) __asm__ volatile("vfma.f32 %q0, %q1, %q2" : "+w"(c) : "w"(a), "w"(b));
#else
#define FLOAT32(c) c = c * a + b; __asm__ volatile("" : "+x"(c));
#endif

#if defined(__ARM_FEATURE_FP16_VECTOR_ARITHMETIC) && defined(__aarch64__)
#define FLOAT16(c) __asm__ volatile("fmla %0.8h, %1.8h, %2.8h" : "+w"(c) : "w"(a), "w"(b));
#endif

#define AVX2_F32(c) __asm__ volatile("vfmadd231ps %t1, %t2, %t0" : "+x"(c) : "x"(a), "x"(b));
#define AVX2_INT16(c)                                                                                      \
    __asm__ volatile("vpmaddwd %t2, %t3, %t1\n\tvpaddd %t1, %t0, %t0" : "+x"(c), "=&x"(t) : "x"(a), "x"(b));
#define AVX2_INT8X64(c)                                                                                    \
    __asm__ volatile("vpmaddubsw %t2, %t3, %t1\n\tvpmaddwd %t3, %t1, %t1\n\tvpaddd %t1, %t0, %t0"         \
                     : "+x"(c), "=&x"(t) : "x"(a), "x"(b));
#define AVX2_INT8X127(c)                                                                                   \
    __asm__ volatile("vpsignb %t3, %t2, %t1\n\tvpmaddubsw %t1, %t2, %t1\n\tvpmaddwd %t3, %t1, %t1\n\t"      \
                     "vpaddd %t1, %t0, %t0" : "+x"(c), "=&x"(t) : "x"(a), "x"(b));
#define AVX_VNNI(c) __asm__ volatile("%{vex%} vpdpbusd %t1, %t2, %t0" : "+x"(c) : "x"(a), "x"(b));
#define AVX512_BF16(c) __asm__ volatile("vdpbf16ps %1, %2, %0" : "+v"(c) : "v"(a), "v"(b));
#define AVX512_VNNI(c) __asm__ volatile("vpdpbusd %1, %2, %0" : "+v"(c) : "v"(a), "v"(b));
#define NEON_BFDOT(c) __asm__ volatile("bfdot %0.4s, %1.8h, %2.8h" : "+w"(c) : "w"(a), "w"(b));
#define NEON_BFMMLA(c) __asm__ volatile("bfmmla %0.4s, %1.8h, %2.8h" : "+w"(c) : "w"(a), "w"(b));
#define NEON_SDOT(c) __asm__ volatile("sdot %0.4s, %1.16b, %2.16b" : "+w"(c) : "w"(a), "w"(b));
#define NEON_UDOT(c) __asm__ volatile("udot %0.4s, %1.16b, %2.16b" : "+w"(c) : "w"(a), "w"(b));
#define NEON_USDOT(c) __asm__ volatile("usdot %0.4s, %1.16b, %2.16b" : "+w"(c) : "w"(a), "w"(b));
#define NEON_SMMLA(c) __asm__ volatile("smmla %0.4s, %1.16b, %2.16b" : "+w"(c) : "w"(a), "w"(b));
#define NEON_USMMLA(c) __asm__ volatile("usmmla %0.4s, %1.16b, %2.16b" : "+w"(c) : "w"(a), "w"(b));

/* Twelve accumulators cover every known latency x ports, and fit sixteen registers with the two operands. */
#define EACH(OP) OP(c0) OP(c1) OP(c2) OP(c3) OP(c4) OP(c5) OP(c6) OP(c7) OP(c8) OP(c9) OP(c10) OP(c11)
#define CHAIN(OP) OP(c0) OP(c0) OP(c0) OP(c0) OP(c0) OP(c0) OP(c0) OP(c0) OP(c0) OP(c0) OP(c0) OP(c0)
enum { UNROLL = 12, LOOPS = 500 };

/* What is timed on one core, and the nanoseconds of its best run so far. */
typedef struct instruction {
    const char *name;
    void (*run)(void);
    int on_tiles;
    double best;
    struct instruction *next;
} instruction;

static instruction *instructions;

/* Puts the function ID among the instructions, before main begins. */
#define TIMED(ID, NAME, ON_TILES)                                                                          \
    static void ID(void);                                                                                  \
    static __attribute__((constructor)) void add_##ID(void) {                                              \
        static instruction one = {NAME, ID, ON_TILES, 1e30, 0};                                            \
        one.next = instructions, instructions = &one;                                                      \
    }

/* ID() is one run. It calls nothing, so that no accumulator leaves its register. */
#define RUN(ID, NAME, BODY)                                                                                \
    TIMED(ID, NAME, 0)                                                                                     \
    static __attribute__((noinline)) void ID(void) {                                                       \
        vector a = {0}, b = {0}, c0 = a, c1 = a, c2 = a, c3 = a, c4 = a, c5 = a, c6 = a, c7 = a, c8 = a,    \
               c9 = a, c10 = a, c11 = a;                                                                   \
        for (int loop = 0; loop < LOOPS; loop++) { BODY }                                                  \
        vector sink = c0 + c1 + c2 + c3 + c4 + c5 + c6 + c7 + c8 + c9 + c10 + c11;                          \
        __asm__ volatile("" : : "m"(sink));                                                                \
    }

RUN(latency, "latency", CHAIN(FLOAT32))
RUN(float32, "float32", EACH(FLOAT32))
#ifdef FLOAT16
RUN(float16, "float16", EACH(FLOAT16))
#endif
#ifdef __AVX512F__
RUN(avx512_f32, "avx512-f32", EACH(FLOAT32))
#endif
#if defined(__AVX2__) && defined(__FMA__)
RUN(avx2_f32, "avx2-f32", EACH(AVX2_F32))
#endif
#ifdef __AVX2__
RUN(avx2_int8x64, "avx2-int8x64", vector t; EACH(AVX2_INT8X64))
RUN(avx2_int8x127, "avx2-int8x127", vector t; EACH(AVX2_INT8X127))
RUN(avx2_int16, "avx2-int16", vector t; EACH(AVX2_INT16))
RUN(avx2_int16x16, "avx2-int16x16", vector t; EACH(AVX2_INT16))
#endif
#ifdef __AVXVNNI__
RUN(avx_vnni, "avx-vnni", EACH(AVX_VNNI))
#endif
#ifdef __AVX512BF16__
RUN(avx512_bf16, "avx512-bf16", EACH(AVX512_BF16))
#endif
#ifdef __AVX512VNNI__
RUN(avx512_vnni, "avx512-vnni", EACH(AVX512_VNNI))
#endif
#ifdef __aarch64__
RUN(neon_f32, "neon-f32", EACH(FLOAT32))
#elif defined(__arm__)
RUN(armv7_neon_f32, "armv7-neon-f32", EACH(FLOAT32))
#endif
#if defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC) && defined(__aarch64__)
RUN(neon_bfdot, "neon-bfdot", EACH(NEON_BFDOT))
RUN(neon_bfmmla, "neon-bfmmla", EACH(NEON_BFMMLA))
#endif
#if defined(__ARM_FEATURE_DOTPROD) && defined(__aarch64__)
RUN(neon_sdot, "neon-sdot", EACH(NEON_SDOT))
RUN(neon_udot, "neon-udot", EACH(NEON_UDOT))
#endif
#if defined(__ARM_FEATURE_MATMUL_INT8) && defined(__aarch64__)
RUN(neon_usdot, "neon-usdot", EACH(NEON_USDOT))
RUN(neon_smmla, "neon-smmla", EACH(NEON_SMMLA))
RUN(neon_usmmla, "neon-usmmla", EACH(NEON_USMMLA))
#endif

/* Tile registers: six accumulators cover the latency of products of whole tiles. */
#define ON_TILE(OP, C) __asm__ volatile(OP " %tmm7, %tmm6, %tmm" #C);
#define SIX(OP) ON_TILE(OP, 0) ON_TILE(OP, 1) ON_TILE(OP, 2) ON_TILE(OP, 3) ON_TILE(OP, 4) ON_TILE(OP, 5)
#define TILE_RUN(ID, NAME, OP)                                                                             \
    TIMED(ID, NAME, 1)                                                                                     \
    static __attribute__((noinline)) void ID(void) {                                                       \
        for (int loop = 0; loop < LOOPS; loop++) { SIX(OP) SIX(OP) }                                       \
    }
#ifdef __AMX_BF16__
TILE_RUN(amx_bf16, "amx-bf16", "tdpbf16ps")
#endif
#ifdef __AMX_INT8__
TILE_RUN(amx_u8s8, "amx-u8s8", "tdpbusd")
TILE_RUN(amx_s8s8, "amx-s8s8", "tdpbssd")
#endif

/* Whether there are tiles, all of them whole. */
static int set_up_tiles(void) {
#ifdef __AMX_TILE__
    unsigned char table[64] = {1};
    for (int tile = 0; tile < 8; tile++) table[16 + 2 * tile] = 64, table[48 + tile] = 16;
    if (syscall(SYS_arch_prctl, 0x1023 /* ARCH_REQ_XCOMP_PERM */, 18L /* XTILEDATA */)) return 0;
    __asm__ volatile("ldtilecfg %0" : : "m"(table));
    return 1;
#else
    return 0;
#endif
}

/* A chain of register-to-register additions takes one cycle each on every core that modelc knows. */
#if defined(__x86_64__)
#define ADD(c) __asm__ volatile("add %1, %0" : "+r"(sum) : "r"(one));
#else
#define ADD(c) __asm__ volatile("add %0, %0, %1" : "+r"(sum) : "r"(one));
#endif
TIMED(cycle, "cycle", 0)
static __attribute__((noinline)) void cycle(void) {
    uintptr_t sum = 1, one = 1;
    for (int loop = 0; loop < LOOPS; loop++) { EACH(ADD) }
}

static double least(double a, double b) { return a < b ? a : b; }

/* BEST becomes the nanoseconds of the fastest of the runs of BODY that fit in MILLISECONDS, if it was more. */
#define RACE(BEST, MILLISECONDS, BODY)                                                                     \
    for (double start = now(), end = start + (MILLISECONDS) * 1e6; start < end;) {                          \
        BODY;                                                                                              \
        double stop = now();                                                                               \
        BEST = least(BEST, stop - start);                                                                  \
        start = stop;                                                                                      \
    }

/* Reads `bytes` (a multiple of 8 vectors) `passes` times. */
static void read_all(const char *data, size_t bytes, int passes) {
    words s0 = {0}, s1 = s0, s2 = s0, s3 = s0, s4 = s0, s5 = s0, s6 = s0, s7 = s0;
    for (int pass = 0; pass < passes; pass++) {
        for (size_t i = 0; i < bytes; i += 8 * VECTOR) {
            const words *at = (const words *)(data + i);
            s0 ^= at[0], s1 ^= at[1], s2 ^= at[2], s3 ^= at[3], s4 ^= at[4], s5 ^= at[5], s6 ^= at[6], s7 ^= at[7];
        }
        __asm__ volatile("" : : : "memory");
    }
    words sink = s0 ^ s1 ^ s2 ^ s3 ^ s4 ^ s5 ^ s6 ^ s7;
    __asm__ volatile("" : : "m"(sink));
}

/* GB/s of one core that reads `bytes` again and again, for a tenth of a second. */
static double cache_bandwidth(const char *data, size_t bytes) {
    int passes = bytes < 1000000 ? (int)(1000000 / bytes) : 1;
    double best = 1e30;
    RACE(best, 100, read_all(data, bytes, passes))
    return (double)bytes * passes / best;
}

enum { CHUNK = 1 << 18, PASSES = 4 };

typedef struct {
    char *data;
    size_t bytes;
    pthread_barrier_t *barrier;
    double rate;
} slice;

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* GB/s of a thread while it reads its slice, from the times of single CHUNKs: whoever else runs here takes milliseconds
 * away at a time, from some of them. The median of their best third is what it reads undisturbed. */
static void *read_slice(void *argument) {
    slice *mine = argument;
    size_t chunks = mine->bytes / CHUNK, count = 0;
    double *times = malloc(sizeof(double) * chunks * PASSES);
    if (times == NULL) exit(1);
    memset(mine->data, 1, mine->bytes);
    pthread_barrier_wait(mine->barrier);
    for (int pass = 0; pass < PASSES; pass++)
        for (size_t k = 0; k < chunks; k++) {
            double start = now();
            read_all(mine->data + k * CHUNK, CHUNK, 1);
            times[count++] = now() - start;
        }
    qsort(times, count, sizeof(double), ascending);
    mine->rate = CHUNK / times[count / 6];
    free(times);
    return NULL;
}

/* GB/s of `threads` threads together, each of which reads a slice of `bytes` at the same time. */
static double memory_bandwidth(char *data, size_t bytes, int threads) {
    pthread_t ids[threads];
    slice *slices = malloc(sizeof(slice) * (size_t)threads);
    pthread_barrier_t barrier;
    pthread_barrier_init(&barrier, NULL, (unsigned)threads);
    size_t share = bytes / (size_t)threads / CHUNK * CHUNK;
    if (slices == NULL || share == 0) exit(1);
    for (int i = 0; i < threads; i++) {
        slices[i] = (slice){data + (size_t)i * share, share, &barrier, 0};
        if (pthread_create(&ids[i], NULL, read_slice, &slices[i])) exit(1);
    }
    double rate = 0;
    for (int i = 0; i < threads; i++) {
        pthread_join(ids[i], NULL);
        rate += slices[i].rate;
    }
    free(slices);
    return rate;
}

enum { SAMPLES = 1 << 16 };

typedef struct {
    const instruction *what;
    double milliseconds, median;
} sampling;

/* The median run of one thread. Tile registers are set up by every thread for itself. */
static void *sample(void *argument) {
    sampling *mine = argument;
    double *runs = malloc(sizeof(double) * SAMPLES);
    if (runs == NULL || (mine->what->on_tiles && !set_up_tiles())) exit(1);
    int count = 0;
    for (double start = now(), end = start + mine->milliseconds * 1e6; start < end && count < SAMPLES; count++) {
        mine->what->run();
        double stop = now();
        runs[count] = stop - start;
        start = stop;
    }
    qsort(runs, (size_t)count, sizeof(double), ascending);
    mine->median = runs[count / 2];
    free(runs);
    return NULL;
}

static int only(const char *name, int threads, double milliseconds) {
    const instruction *what = instructions;
    while (what && strcmp(what->name, name)) what = what->next;
    if (what == NULL || threads < 1 || !(milliseconds > 0)) return 2;
    pthread_t ids[threads];
    sampling samplings[threads];
    for (int i = 0; i < threads; i++) {
        samplings[i] = (sampling){what, milliseconds, 0};
        if (pthread_create(&ids[i], NULL, sample, &samplings[i])) return 1;
    }
    for (int i = 0; i < threads; i++) {
        pthread_join(ids[i], NULL);
        printf("%.6f\n", samplings[i].median / (LOOPS * UNROLL));
    }
    return 0;
}

int main(int count, char **arguments) {
    if (count == 5 && !strcmp(arguments[1], "--only")) return only(arguments[2], atoi(arguments[3]), atof(arguments[4]));
    if (count < 3) return 2;
    int threads = atoi(arguments[1]);
    size_t memory = (size_t)atoll(arguments[count - 1]);
    char *data = aligned_alloc(4096, memory);
    if (data == NULL || threads < 1) return 1;
    int tiles = set_up_tiles();
    for (int round = 0; round < 10; round++) /* rounds, as the clock and the neighbours change */
        for (instruction *one = instructions; one; one = one->next)
            if (tiles || !one->on_tiles) RACE(one->best, 8, one->run())
    for (instruction *one = instructions; one; one = one->next)
        if (tiles || !one->on_tiles) printf("%s %.6f\n", one->name, one->best / (LOOPS * UNROLL));
    printf("vector %d\n", VECTOR * 8);
    double memory_gbs = memory_bandwidth(data, memory, threads); /* first: it touches the pages */
    double alone_gbs = memory_bandwidth(data, memory, 1);
    for (int i = 2; i < count - 1; i++) printf("cache%d %.4f\n", i - 2, cache_bandwidth(data, (size_t)atoll(arguments[i])));
    printf("memory %.4f\ncore_memory %.4f\n", memory_gbs, alone_gbs);
    return 0;
}
