/* The threads of one handle: fork and join over the chunks of one step.
 *
 * The caller publishes a job by storing its number of chunks in `unclaimed`, and works on it itself. Whoever
 * decrements `unclaimed` may take one chunk, and only then reads the job: it cannot change before that chunk is done.
 * A thread takes chunks of its own share first, the same part of every step's loop, for it finds in its cache what it
 * wrote there in the step before; then those that others have left. So nobody waits for a worker that came late. A forked
 * process has no workers, and a lock that one of them held at the fork stays locked there: it computes alone and asks no
 * lock.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "modelc_runtime.h"

enum {
    SPIN_NANOSECONDS = 50000, /* what a thread that waits spends before it sleeps: longer than most serial steps */
    CHUNKS_PER_THREAD = 4     /* enough to even out a core that runs slower, few enough to cost nothing */
};

typedef struct mc_worker {
    _Alignas(64) atomic_uint next; /* of its share of the chunks, the one that is taken next */
    pthread_t thread;
    mc_pool *pool;
    uint8_t *scratch;
    atomic_int is_taken; /* by a task of the job, where threads are the application's */
} mc_worker;

struct mc_pool {
    /* the job */
    const mc_step *step;
    const mc_frame *frame;
    uint32_t chunks;
    /* counters that threads spin on, each in a cache line of its own */
    _Alignas(64) atomic_uint unclaimed;
    _Alignas(64) atomic_uint done;
    _Alignas(64) atomic_int sleepers; /* workers that wait for `work` */
    atomic_int caller_sleeps;         /* the caller waits for `finished` */
    atomic_int quit;
    pthread_mutex_t lock;
    pthread_cond_t work, finished;
    int32_t threads; /* with the caller */
    int32_t started; /* workers that run */
    int alone;       /* the caller runs steps without workers */
    int flush_denormals;
    modelc_parallel_for parallel_for; /* NULL: workers are the pool's own threads */
    void *context;
    uint64_t spin;
    pid_t owner;
    uint8_t *scratch; /* of all threads; the caller's comes first */
    size_t scratch_stride;
    mc_worker workers[]; /* the caller's entry is the first */
};

static const size_t HUGE_PAGE = 2 << 20;

static int is_forked(const mc_pool *pool) { return pool->owner != getpid(); }

uint64_t mc_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* In huge pages where it is large and the system gives some: of small ones it is luck which lie in the same sets of a
 * cache. */
void *mc_map_zeroed(size_t bytes) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE), wanted = (bytes / page + 1) * page;
    size_t slack = wanted >= HUGE_PAGE ? HUGE_PAGE : 0;
    uint8_t *memory = mmap(NULL, wanted + slack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return NULL;
    if (!slack) return memory;
    size_t before = (HUGE_PAGE - (uintptr_t)memory % HUGE_PAGE) % HUGE_PAGE;
    if (before) munmap(memory, before);
    if (slack - before) munmap(memory + before + wanted, slack - before);
#ifdef MADV_HUGEPAGE
    madvise(memory + before, wanted, MADV_HUGEPAGE);
#endif
    return memory + before;
}

void mc_unmap(void *memory, size_t bytes) {
    if (memory) munmap(memory, bytes + 1);
}

static void relax(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__) || defined(__arm__)
    __asm__ volatile("yield");
#elif defined(__riscv)
    __asm__ volatile(".4byte 0x0100000f"); /* pause, a hint that every RISC-V takes */
#endif
}

/* Spins until `*counter` has (or, with `leave`, no longer has) the value; false when the time for that is over. */
static int spin_until(atomic_uint *counter, uint32_t value, int leave, uint64_t nanoseconds) {
    uint64_t start = 0;
    for (;;) {
        for (int i = 0; i < 64; i++) {
            if ((atomic_load_explicit(counter, memory_order_acquire) != value) == leave) return 1;
            relax();
        }
        uint64_t now = mc_now();
        if (!start) start = now;
        if (now - start >= nanoseconds) return 0;
    }
}

static int may_take(mc_pool *pool) {
    uint32_t left = atomic_load_explicit(&pool->unclaimed, memory_order_relaxed);
    while (left)
        if (atomic_compare_exchange_weak_explicit(&pool->unclaimed, &left, left - 1, memory_order_acq_rel,
                                                  memory_order_relaxed))
            return 1;
    return 0;
}

/* The first chunk of the share of thread `index`. */
static uint32_t share_of(const mc_pool *pool, int32_t index) {
    return (uint32_t)((uint64_t)pool->chunks * (uint32_t)index / (uint32_t)pool->threads);
}

/* There is a chunk for everyone who may take one, and a share that is found empty stays empty: one round finds it. */
static uint32_t take(mc_pool *pool, int32_t index) {
    for (;; index = index + 1 < pool->threads ? index + 1 : 0) {
        uint32_t chunk = atomic_fetch_add_explicit(&pool->workers[index].next, 1, memory_order_relaxed);
        if (chunk < share_of(pool, index + 1)) return chunk;
    }
}

static void work(mc_pool *pool, mc_worker *worker) {
    while (may_take(pool)) {
        const mc_step *step = pool->step;
        uint32_t chunks = pool->chunks, chunk = take(pool, (int32_t)(worker - pool->workers));
        const uint64_t extent = (uint64_t)mc_extent_in(step, pool->frame);
        int32_t begin = (int32_t)(extent * chunk / chunks);
        int32_t end = (int32_t)(extent * (chunk + 1) / chunks);
        step->run(pool->frame, worker->scratch, begin, end);
        if (atomic_fetch_add(&pool->done, 1) + 1 == chunks && atomic_load(&pool->caller_sleeps)) {
            pthread_mutex_lock(&pool->lock);
            pthread_cond_signal(&pool->finished);
            pthread_mutex_unlock(&pool->lock);
        }
    }
}

static void *worker_main(void *argument) {
    mc_worker *worker = argument;
    mc_pool *pool = worker->pool;
    mc_float_enter(pool->flush_denormals);
    while (!atomic_load(&pool->quit)) {
        if (!spin_until(&pool->unclaimed, 0, 1, pool->spin)) {
            pthread_mutex_lock(&pool->lock);
            atomic_fetch_add(&pool->sleepers, 1);
            while (!atomic_load(&pool->unclaimed) && !atomic_load(&pool->quit))
                pthread_cond_wait(&pool->work, &pool->lock);
            atomic_fetch_sub(&pool->sleepers, 1);
            pthread_mutex_unlock(&pool->lock);
        }
        work(pool, worker);
    }
    return NULL;
}

static void wake_workers(mc_pool *pool) {
    pthread_mutex_lock(&pool->lock);
    pthread_cond_broadcast(&pool->work);
    pthread_mutex_unlock(&pool->lock);
}

/* A share of the job on a thread of the application's, which keeps its own way to compute with floats. Whoever comes with an
 * index that there is not, or that another has come with, has nothing to do. */
static void run_task(void *arguments, int32_t index) {
    mc_pool *pool = arguments;
    if (index < 0 || index >= pool->threads || atomic_exchange(&pool->workers[index].is_taken, 1)) return;
    const uint64_t saved = mc_float_enter(pool->flush_denormals);
    work(pool, &pool->workers[index]);
    mc_float_leave(saved);
}

static void share_out(mc_pool *pool, uint32_t chunks) {
    const int32_t tasks = chunks < (uint32_t)pool->threads ? (int32_t)chunks : pool->threads;
    for (int32_t i = 0; i < pool->threads; i++) atomic_store(&pool->workers[i].is_taken, i >= tasks);
    atomic_store(&pool->unclaimed, chunks);
    pool->parallel_for(pool->context, run_task, pool, tasks);
    for (int32_t i = 0; i < tasks; i++) run_task(pool, i); /* what the application has left out */
}

void mc_pool_enter(mc_pool *pool) { pool->alone = pool->threads == 1 || is_forked(pool); }

void mc_pool_run(mc_pool *pool, const mc_step *step, const mc_frame *frame) {
    const int32_t extent = mc_extent_in(step, frame);
    if (step->serial || extent <= 1 || pool->alone) {
        step->run(frame, pool->scratch, 0, extent);
        return;
    }
    uint32_t chunks = (uint32_t)pool->threads * CHUNKS_PER_THREAD;
    if (chunks > (uint32_t)extent) chunks = (uint32_t)extent;
    pool->step = step;
    pool->frame = frame;
    pool->chunks = chunks;
    for (int32_t i = 0; i < pool->threads; i++)
        atomic_store_explicit(&pool->workers[i].next, share_of(pool, i), memory_order_relaxed);
    atomic_store_explicit(&pool->done, 0, memory_order_relaxed);
    if (pool->parallel_for) {
        share_out(pool, chunks);
    } else {
        /* Sequentially consistent, as is a worker's "sleepers + 1, then look": one of the two sees the other. */
        atomic_store(&pool->unclaimed, chunks);
        if (atomic_load(&pool->sleepers)) wake_workers(pool);
        work(pool, pool->workers);
    }
    if (spin_until(&pool->done, chunks, 0, pool->spin)) return;
    pthread_mutex_lock(&pool->lock);
    atomic_store(&pool->caller_sleeps, 1);
    while (atomic_load(&pool->done) != chunks) pthread_cond_wait(&pool->finished, &pool->lock);
    atomic_store(&pool->caller_sleeps, 0);
    pthread_mutex_unlock(&pool->lock);
}

static int start_workers(mc_pool *pool) {
    static const int faults[] = {SIGILL, SIGFPE, SIGSEGV, SIGBUS, SIGTRAP};
    sigset_t all, before;
    sigfillset(&all); /* the application's signal handlers run on the application's threads, */
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) sigdelset(&all, faults[i]); /* but for a thread's own */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    for (; pool->started < pool->threads - 1; pool->started++) {
        mc_worker *worker = &pool->workers[pool->started + 1];
        if (pthread_create(&worker->thread, NULL, worker_main, worker)) break;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return pool->started == pool->threads - 1;
}

mc_pool *mc_pool_open(const modelc_options *options, size_t scratch_bytes, int flush_denormals) {
    const int32_t threads = options->threads;
    void *memory;
    size_t bytes = sizeof(mc_pool) + (size_t)threads * sizeof(mc_worker);
    if (posix_memalign(&memory, 64, bytes)) return NULL;
    memset(memory, 0, bytes);
    mc_pool *pool = memory;
    pool->threads = threads;
    pool->flush_denormals = flush_denormals;
    pool->spin = threads <= mc_cpu_affinity() ? SPIN_NANOSECONDS : 0;
    pool->owner = getpid();
    pool->parallel_for = options->parallel_for;
    pool->context = options->context;
    pool->scratch_stride = (scratch_bytes + 4095) / 4096 * 4096;
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->work, NULL);
    pthread_cond_init(&pool->finished, NULL);
    if (pool->scratch_stride <= SIZE_MAX / 2 / (size_t)threads) /* else it does not fit an address space of 32 bits */
        pool->scratch = mc_map_zeroed((size_t)threads * pool->scratch_stride);
    for (int32_t i = 0; i < threads && pool->scratch; i++) {
        pool->workers[i].pool = pool;
        pool->workers[i].scratch = pool->scratch + (size_t)i * pool->scratch_stride;
    }
    if (pool->scratch && (pool->parallel_for || start_workers(pool))) return pool;
    mc_pool_close(pool);
    return NULL;
}

void mc_pool_close(mc_pool *pool) {
    if (!pool) return;
    if (!is_forked(pool)) {
        atomic_store(&pool->quit, 1);
        wake_workers(pool);
        for (int32_t i = 0; i < pool->started; i++) pthread_join(pool->workers[i + 1].thread, NULL);
        pthread_cond_destroy(&pool->work);
        pthread_cond_destroy(&pool->finished);
        pthread_mutex_destroy(&pool->lock);
    }
    mc_unmap(pool->scratch, (size_t)pool->threads * pool->scratch_stride);
    free(pool);
}
