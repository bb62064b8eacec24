/* Asking about a model, and running its steps: what is the same wherever it runs. Of a C library it uses memcpy and memset
 * alone. */
#include <string.h>

#include "modelc_runtime.h"

/* ---- asking ---- */

const mc_variant *mc_variant_of(const modelc_handle *handle, int32_t variant) {
    return handle && variant >= 0 && variant < mc_the_model.variant_count ? &mc_the_model.variants[variant] : NULL;
}

const char *modelc_metadata(const modelc_handle *handle) { return handle ? mc_the_model.metadata : NULL; }

int32_t modelc_thread_count(const modelc_handle *handle) { return handle ? handle->threads : 0; }

int32_t modelc_variant_count(const modelc_handle *handle) { return handle ? mc_the_model.variant_count : 0; }

int32_t modelc_input_count(const modelc_handle *handle, int32_t variant) {
    const mc_variant *v = mc_variant_of(handle, variant);
    return v ? v->input_count : 0;
}

int32_t modelc_output_count(const modelc_handle *handle, int32_t variant) {
    const mc_variant *v = mc_variant_of(handle, variant);
    return v ? v->output_count : 0;
}

const modelc_tensor *modelc_input(const modelc_handle *handle, int32_t variant, int32_t index) {
    const mc_variant *v = mc_variant_of(handle, variant);
    return v && index >= 0 && index < v->input_count ? &v->inputs[index] : NULL;
}

const modelc_tensor *modelc_output(const modelc_handle *handle, int32_t variant, int32_t index) {
    const mc_variant *v = mc_variant_of(handle, variant);
    return v && index >= 0 && index < v->output_count ? &v->outputs[index] : NULL;
}

int32_t modelc_step_count(const modelc_handle *handle, int32_t variant) {
    const mc_variant *v = mc_variant_of(handle, variant);
    return v ? v->step_count : 0;
}

/* ---- running ---- */

static modelc_status check_buffers(const modelc_tensor *tensors, int32_t count, const void *const *buffers,
                                   const char *kind) {
    if (count && !buffers) return mc_fail(MODELC_BAD_ARGUMENT, "the table of %ss is NULL", kind);
    for (int32_t i = 0; i < count; i++)
        if (!buffers[i] && tensors[i].bytes)
            return mc_fail(MODELC_BAD_ARGUMENT, "%s %d ('%s', %zu bytes) is NULL", kind, (int)i, tensors[i].name,
                        tensors[i].bytes);
    return MODELC_OK;
}

/* Shapes have the ranks of the inputs, which every variant has alike. */
static modelc_status check_shapes(const int64_t *const *shapes) {
    const mc_variant *v = &mc_the_model.variants[0];
    for (int32_t i = 0; i < v->input_count; i++)
        if (!shapes[i] && v->inputs[i].rank)
            return mc_fail(MODELC_BAD_ARGUMENT, "the shape of input %d ('%s', of %d extents) is NULL", (int)i,
                        v->inputs[i].name, (int)v->inputs[i].rank);
    return MODELC_OK;
}

modelc_status mc_no_such_variant(const modelc_handle *handle, int32_t variant) {
    if (!handle) return mc_fail(MODELC_BAD_ARGUMENT, "the handle is NULL");
    return mc_fail(MODELC_BAD_ARGUMENT, "variant %d was asked for; the package has %d", (int)variant,
                (int)mc_the_model.variant_count);
}

static void watch_step(modelc_handle *handle, const mc_variant *v, int32_t step, int32_t after,
                       const mc_frame *frame) {
    if (handle->watcher) handle->watcher(handle->context, (int32_t)(v - mc_the_model.variants), step, after, frame);
}

/* Whether the run is to end here: asked before every step and every iteration. */
static modelc_status ended(modelc_handle *handle) {
    if (atomic_load_explicit(&handle->stopped, memory_order_relaxed)) return mc_fail(MODELC_STOPPED, "the run was stopped");
    return handle->poller || handle->limit ? mc_ask(handle) : MODELC_OK;
}

/* Data that leads outside is found on the calling thread, before any kernel has touched memory by it. */
static modelc_status run_step(modelc_handle *handle, const mc_variant *v, int32_t number, const mc_frame *frame) {
    const mc_step *step = &v->steps[number];
    const modelc_status status = ended(handle);
    if (status) return status;
    if (step->check && !step->check(frame, mc_message(), MC_MESSAGE_BYTES)) return MODELC_BAD_DATA;
    watch_step(handle, v, number, 0, frame);
    mc_run_shared(handle, step, frame);
    watch_step(handle, v, number, 1, frame);
    return MODELC_OK;
}

/* Steps [first, end), in order; `counters` are of all steps, NULL where nobody profiles. */
static modelc_status run_steps(modelc_handle *handle, const mc_variant *v, int32_t first, int32_t end,
                               const mc_frame *frame, mc_counter *counters) {
    modelc_status status = MODELC_OK;
    for (int32_t i = first; i < end && !status; i++) {
        const uint64_t start = counters ? mc_now() : 0;
        status = run_step(handle, v, i, frame);
        if (!counters) continue;
        counters[i].nanoseconds += mc_now() - start;
        counters[i].calls++;
    }
    return status;
}

/* Steps [first, end), and rows [row, last) of control, which are within them. */
typedef struct part {
    int32_t first, end, row, last;
} part;

static modelc_status run_part(modelc_handle *handle, const mc_variant *v, part p, mc_frame *frame,
                              mc_counter *counters);

static uint8_t *at(const mc_frame *frame, mc_address a) {
    const int64_t offset = mc_number_in(&a.offset, frame);
    switch (a.space) {
    case MC_ARENA: return frame->arena + offset;
    case MC_PARAMS: return (uint8_t *)(uintptr_t)frame->params + offset;
    case MC_MADE: return (uint8_t *)(uintptr_t)frame->made + offset;
    case MC_INPUT: return (uint8_t *)(uintptr_t)frame->inputs[a.index] + offset;
    case MC_OUTPUT: return (uint8_t *)frame->outputs[a.index] + offset;
    case MC_SLOT: return frame->slots[a.index] + offset;
    case MC_SIZE: return (uint8_t *)&frame->sizes[a.index] + offset;
    case MC_NOWHERE: break;
    }
    return NULL;
}

/* A bool; where it is nowhere, true. Users' bools may be any byte. */
static int is_true(const mc_frame *frame, mc_address a) { return a.space == MC_NOWHERE || *at(frame, a) != 0; }

static modelc_status run_repeat(modelc_handle *handle, const mc_variant *v, int32_t row, mc_frame *frame,
                                mc_counter *counters) {
    const mc_control *c = &v->control[row];
    const part body = {c->first, c->end, row + 1, c->next};
    modelc_status status = MODELC_OK;
    const int64_t limit = mc_number_in(&c->limit, frame);
    int64_t count = limit < 0 ? INT64_MAX : limit, done = 0, given;
    if (c->count.space != MC_NOWHERE) {
        memcpy(&given, at(frame, c->count), sizeof given); /* a user's buffer has any alignment */
        if (given < count) count = given;
    }
    for (int32_t i = 0; i < c->carried_count; i++) frame->slots[c->carried[i].written] = at(frame, c->carried[i].start);
    int go = is_true(frame, c->condition);
    for (; go && done < count && !status; done++) {
        for (int32_t i = 0; i < c->carried_count; i++) {
            const mc_carried *one = &c->carried[i];
            frame->slots[one->read] = frame->slots[one->written];
            frame->slots[one->written] = at(frame, done % 2 ? one->spare : one->result);
        }
        for (int32_t i = 0; i < c->moving_count; i++) {
            const mc_moving *one = &c->moving[i];
            frame->slots[one->slot] = at(frame, one->start) + done * mc_number_in(&one->bytes, frame);
        }
        memcpy(at(frame, c->number), &done, sizeof done);
        if (!(status = ended(handle))) status = run_part(handle, v, body, frame, counters);
        go = is_true(frame, c->go);
    }
    for (int32_t i = 0; i < c->carried_count && !status; i++) {
        const mc_carried *one = &c->carried[i];
        if (frame->slots[one->written] != at(frame, one->result))
            memcpy(at(frame, one->result), frame->slots[one->written], (size_t)mc_number_in(&one->bytes, frame));
    }
    return status;
}

static modelc_status run_control(modelc_handle *handle, const mc_variant *v, int32_t row, mc_frame *frame,
                                 mc_counter *counters) {
    const mc_control *c = &v->control[row];
    modelc_status status = MODELC_OK;
    if (c->kind == MC_REPEAT) return run_repeat(handle, v, row, frame, counters);
    if (c->kind == MC_BRANCH) {
        part then = {c->first, c->middle, row + 1, c->cut}, otherwise = {c->middle, c->end, c->cut, c->next};
        part taken = is_true(frame, c->condition) ? then : otherwise;
        if (c->refusal && taken.first == taken.end) return mc_fail(MODELC_BAD_DATA, "%s", c->refusal);
        return run_part(handle, v, taken, frame, counters);
    }
    for (const int64_t limit = mc_number_in(&c->limit, frame); frame->iteration < limit && !status; frame->iteration++)
        status = run_steps(handle, v, c->first, c->end, frame, counters);
    frame->iteration = 0;
    return status;
}

static modelc_status run_part(modelc_handle *handle, const mc_variant *v, part p, mc_frame *frame,
                              mc_counter *counters) {
    modelc_status status = MODELC_OK;
    int32_t done = p.first;
    for (int32_t row = p.row; row < p.last && !status; row = v->control[row].next) {
        status = run_steps(handle, v, done, v->control[row].first, frame, counters);
        if (!status) status = run_control(handle, v, row, frame, counters);
        done = v->control[row].end;
    }
    return status ? status : run_steps(handle, v, done, p.end, frame, counters);
}

modelc_status modelc_fit(const modelc_handle *handle, const int64_t *const *shapes, int32_t *variant) {
    if (!handle || !shapes || !variant)
        return mc_fail(MODELC_BAD_ARGUMENT, "fit wants a handle, shapes and a place for the variant, not NULL");
    const modelc_status status = check_shapes(shapes);
    if (status) return status;
    *variant = mc_variant_for(handle, shapes);
    return *variant >= 0 ? MODELC_OK : mc_no_variant(handle, shapes);
}

modelc_status modelc_run_shaped(modelc_handle *handle, int32_t variant, const int64_t *const *shapes,
                                const void *const *inputs, void *const *outputs);

modelc_status modelc_run(modelc_handle *handle, int32_t variant, const void *const *inputs, void *const *outputs) {
    return modelc_run_shaped(handle, variant, NULL, inputs, outputs);
}

modelc_status modelc_run_shaped(modelc_handle *handle, int32_t variant, const int64_t *const *shapes,
                                const void *const *inputs, void *const *outputs) {
    const mc_variant *v = mc_variant_of(handle, variant);
    modelc_status status;
    if (!v) return mc_no_such_variant(handle, variant);
    if (shapes && (status = check_shapes(shapes))) return status;
    if (shapes && !v->size_count && !mc_fits(handle, variant, shapes)) return mc_no_variant(handle, shapes);
    if ((status = check_buffers(v->inputs, v->input_count, inputs, "input")) ||
        (status = check_buffers(v->outputs, v->output_count, (const void *const *)outputs, "output")))
        return status;
    status = MODELC_OK;
    mc_frame frame = {.params = handle->params, .made = handle->made, .inputs = inputs, .outputs = outputs};
    mc_lock(handle);
    mc_kept *kept = &handle->kept[variant];
    int64_t dims[MC_MOST_SIZES];
    if (v->size_count && (status = mc_dims_of(handle, variant, shapes, dims, mc_message(), MC_MESSAGE_BYTES))) {
        mc_unlock(handle);
        return status;
    }
    for (int32_t d = 0; d < v->size_count; d++) kept->dims[d] = dims[d];
    handle->began = 0;
    frame.arena = handle->arena;
    frame.random = handle->random;
    uint64_t saved = mc_float_enter(mc_the_model.flush_denormals);
    frame.slots = handle->slots;
    frame.sizes = kept->sizes;
    kept->said = 0;
    frame.dims = kept->dims;
    for (int32_t i = 0; i < v->state_count; i++) {
        uint8_t *first = kept->halves + v->states[i].offset;
        uint8_t *second = v->states[i].read == v->states[i].written ? first : first + v->state_bytes;
        frame.slots[v->states[i].read] = kept->turn ? second : first;
        frame.slots[v->states[i].written] = kept->turn ? first : second;
    }
    const part all = {0, v->step_count, 0, v->control_count};
    status = run_part(handle, v, all, &frame, handle->profiling ? handle->counters[variant] : NULL);
    if (!status) { /* after an error the state is as it was */
        kept->turn = !kept->turn;
        for (int32_t d = 0; d < v->size_count; d++)
            if (v->sizes[d].input == MC_LENGTH)
                atomic_store_explicit(&kept->lengths[d], (int)(dims[d] + mc_number_in(&v->sizes[d].growth, &frame)),
                                      memory_order_relaxed);
    }
    kept->said = !status;
    if (!status && v->size_count) mc_close_gaps(v, kept->dims, kept->sizes, outputs);
    mc_float_leave(saved);
    handle->random[1]++;
    mc_unlock(handle);
    return status;
}

modelc_status modelc_output_shape(modelc_handle *handle, int32_t variant, int32_t index, int64_t *shape) {
    const mc_variant *v = mc_variant_of(handle, variant);
    int known = 1;
    if (!v) return mc_no_such_variant(handle, variant);
    if (index < 0 || index >= v->output_count || !shape)
        return mc_fail(MODELC_BAD_ARGUMENT, "the shape of output %d was asked for, into %s; variant %d has %d outputs",
                    (int)index, shape ? "a place" : "NULL", (int)variant, (int)v->output_count);
    const modelc_tensor *output = &v->outputs[index];
    for (int32_t axis = 0; axis < output->rank; axis++) shape[axis] = output->shape[axis];
    mc_lock(handle);
    const mc_kept *kept = &handle->kept[variant];
    if (v->size_count) {
        v->shape(kept->dims, 1, index, shape);
        known = kept->said;
    }
    for (int32_t i = 0; i < v->extent_count; i++)
        if (v->extents[i].output == index) {
            shape[v->extents[i].axis] = kept->sizes[i];
            known = kept->said;
        }
    mc_unlock(handle);
    return known ? MODELC_OK
                 : mc_fail(MODELC_BAD_ARGUMENT, "the shape of output '%s' depends on what is run: it is known after a run of "
                        "variant %d that succeeds", output->name, (int)variant);
}

modelc_status modelc_reset(modelc_handle *handle) {
    if (!handle) return mc_fail(MODELC_BAD_ARGUMENT, "the handle is NULL");
    mc_lock(handle);
    for (int32_t v = 0; v < mc_the_model.variant_count; v++) {
        const mc_variant *variant = &mc_the_model.variants[v];
        if (variant->state_bytes) memset(handle->kept[v].halves, 0, (size_t)(2 * variant->state_bytes));
        for (int32_t d = 0; d < variant->size_count; d++)
            atomic_store_explicit(&handle->kept[v].lengths[d], 0, memory_order_relaxed);
    }
    mc_unlock(handle);
    return MODELC_OK;
}

void modelc_stop(modelc_handle *handle, int32_t stopped) {
    if (handle) atomic_store(&handle->stopped, stopped != 0);
}

modelc_status modelc_poll(modelc_handle *handle, modelc_poller poller, void *context) {
    if (!handle) return mc_fail(MODELC_BAD_ARGUMENT, "the handle is NULL");
    mc_lock(handle);
    handle->poller = poller;
    handle->polled = context;
    mc_unlock(handle);
    return MODELC_OK;
}

modelc_status modelc_seed(modelc_handle *handle, uint64_t seed) {
    if (!handle) return mc_fail(MODELC_BAD_ARGUMENT, "the handle is NULL");
    mc_lock(handle);
    handle->random[0] = seed;
    handle->random[1] = 0;
    mc_unlock(handle);
    return MODELC_OK;
}

/* ---- watching, and what steps are ---- */

modelc_status modelc_profile_read(modelc_handle *handle, int32_t variant, int32_t step, modelc_step_profile *profile) {
    const mc_variant *v = mc_variant_of(handle, variant);
    if (!v) return mc_no_such_variant(handle, variant);
    if (step < 0 || step >= v->step_count || !profile)
        return mc_fail(MODELC_BAD_ARGUMENT, "step %d was asked for, into %s; variant %d has %d", (int)step,
                    profile ? "a place" : "NULL", (int)variant, (int)v->step_count);
    mc_lock(handle);
    const mc_counter counter = handle->counters ? handle->counters[variant][step] : (mc_counter){0};
    mc_unlock(handle);
    const mc_step *s = &v->steps[step];
    *profile = (modelc_step_profile){s->name, counter.calls, counter.nanoseconds, s->flops, s->bytes};
    return MODELC_OK;
}

modelc_status modelc_watch(modelc_handle *handle, modelc_watcher watcher, void *context) {
    if (!handle) return mc_fail(MODELC_BAD_ARGUMENT, "the handle is NULL");
    mc_lock(handle);
    handle->watcher = watcher;
    handle->context = context;
    mc_unlock(handle);
    return MODELC_OK;
}
