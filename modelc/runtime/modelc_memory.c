/* Where everything lies that a handle needs while it runs: one piece of memory after another, each at a cache line. */
#include "modelc_runtime.h"

enum { LINE = 64 };

typedef struct cursor {
    uint8_t *memory; /* NULL: it is only counted */
    uint64_t used;
} cursor;

static void *take(cursor *c, uint64_t bytes) {
    uint8_t *piece = c->memory ? c->memory + c->used : NULL;
    c->used += (bytes + LINE - 1) / LINE * LINE;
    return piece;
}

uint64_t mc_place(modelc_handle *handle, uint8_t *memory, int profiled) {
    const mc_model *model = &mc_the_model;
    const uint64_t variants = (uint64_t)model->variant_count;
    cursor c = {memory, 0};
    modelc_handle placed = {.arena = take(&c, model->arena_bytes)}; /* first, so that it has huge pages */
    placed.slots = take(&c, (uint64_t)model->slot_count * sizeof *placed.slots);
    placed.kept = take(&c, variants * sizeof *placed.kept);
    placed.counters = take(&c, profiled ? variants * sizeof *placed.counters : 0);
    for (int32_t v = 0; v < model->variant_count; v++) {
        const mc_variant *variant = &model->variants[v];
        mc_kept kept = {.halves = take(&c, 2 * variant->state_bytes + variant->cache_bytes)};
        kept.sizes = take(&c, (uint64_t)variant->extent_count * sizeof *kept.sizes);
        kept.dims = take(&c, (uint64_t)variant->size_count * sizeof *kept.dims);
        kept.lengths = take(&c, (uint64_t)variant->size_count * sizeof *kept.lengths);
        mc_counter *counters = take(&c, profiled ? (uint64_t)variant->step_count * sizeof *counters : 0);
        if (!memory) continue;
        placed.kept[v] = kept;
        if (profiled) placed.counters[v] = counters;
    }
    if (memory) {
        handle->arena = placed.arena;
        handle->slots = placed.slots;
        handle->kept = placed.kept;
        handle->counters = profiled ? placed.counters : NULL;
    }
    return c.used;
}
