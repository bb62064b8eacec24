/* Where calls that are timed find their buffers and scratch: in several places, by turns.
 *
 * Which pages of memory a buffer gets decides which of its lines fall into the same sets of the second-level cache, and
 * that is luck: huge pages do not help where a hypervisor gives them out in small ones. In one place the same kernel is
 * faster than another by a third, and in the next it is not. In a network, whose steps have many buffers, luck evens out.
 *
 * Before a sample its place is made as a network leaves it: steps before have used the memory that is written and the
 * scratch, and the last of them has written what is read, each thread the part that it has in the next step too.
 */
#include <string.h>

#include "runner.h"

enum { MOST_PLACES = 5 };
static const size_t MOST_PLACE_BYTES = 64 << 20; /* of all places: large buffers have good and bad luck in one */

/* The bytes that a copy of a cold constant takes in its region. */
size_t mr_cold_stride(const buffer *b) { return mr_in_lines(b->bytes); }

int mr_lies_cold(const buffer *b) { return b->source == COLD && mr_cold_stride(b) <= mr_regions[b->region].bytes; }

int mr_make_places(job *j) {
    for (int32_t i = 0; i < j->buffers; i++) {
        buffer *b = &j->buffer[i];
        if (mr_lies_cold(b)) continue;
        b->offset = j->place_bytes;
        j->place_bytes += mr_in_lines(b->bytes);
    }
    for (int32_t k = 0; k < j->kernels; k++)
        if (j->kernel[k].scratch > j->scratch_bytes) j->scratch_bytes = j->kernel[k].scratch;
    size_t one = j->place_bytes + (size_t)j->threads * j->scratch_bytes;
    j->places = MOST_PLACES;
    while (j->places > 1 && one > MOST_PLACE_BYTES / (size_t)j->places) j->places--;
    j->memory = mc_map_zeroed((size_t)j->places * j->place_bytes);
    if (j->memory) memset(j->memory, j->poison, (size_t)j->places * j->place_bytes); /* pages come with the first write */
    return j->memory != NULL;
}

uint8_t *mr_here(const job *j, const buffer *b) { return j->memory + (size_t)j->here * j->place_bytes + b->offset; }

uint8_t *mr_scratch_here(const job *j, uint8_t *scratch) { return scratch + (size_t)j->here * j->scratch_bytes; }

typedef struct {
    mc_frame frame; /* first: what the pool hands over is this */
    const job *j;
    const kernel *k;
} arrival;

static size_t part_of(const buffer *b, const job *j, int32_t number) {
    return number == j->threads ? b->bytes : b->bytes / (size_t)j->threads * (size_t)number;
}

/* A thread's part of what is written beforehand, what is read last; the parts are as many as there are threads. */
static void arrive(const mc_frame *frame, uint8_t *scratch, int32_t begin, int32_t end) {
    const arrival *a = (const arrival *)frame;
    const job *j = a->j;
    for (int32_t given = 0; given < 2; given++) {
        for (int32_t i = 0; i < j->buffers; i++) {
            const buffer *b = &j->buffer[i];
            size_t first = part_of(b, j, begin), bytes = part_of(b, j, end) - first;
            if (mr_lies_cold(b) || given != (b->source != POISONED)) continue;
            if (given) memcpy(mr_here(j, b) + first, b->data + first, bytes);
            else memset(mr_here(j, b) + first, j->poison, bytes);
        }
        if (!given) memset(mr_scratch_here(j, scratch), j->poison, a->k->scratch);
    }
}

void mr_go_to(job *j, const kernel *k, int32_t sample, mc_pool *pool) {
    j->here = sample % j->places;
    arrival a = {.j = j, .k = k};
    mc_step step = {.run = arrive, .extent = j->threads};
    mc_pool_run(pool, &step, &a.frame);
}
