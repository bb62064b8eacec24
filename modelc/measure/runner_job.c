/* What a job says, and the regions where constants lie cold. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "runner.h"

char mr_folder[4096];
region mr_regions[MOST_REGIONS];

_Noreturn void mr_die(const char *what, const char *detail) {
    fprintf(stderr, "%s: %s\n", what, detail);
    exit(1);
}

static char *copied(const char *text) {
    char *copy = strdup(text ? text : "");
    if (!copy) mr_die("out of memory for", text);
    return copy;
}

void mr_path_of(char *path, size_t room, const char *name) {
    if (!*name || strchr(name, '/') || name[0] == '.') mr_die("not the name of a file", name);
    if (snprintf(path, room, "%s/%s", mr_folder, name) >= (int)room) mr_die("path too long", name);
}

FILE *mr_open_file(const char *name, const char *mode) {
    char path[8192];
    mr_path_of(path, sizeof path, name);
    return fopen(path, mode);
}

/* ---- regions: where constants lie cold ---- */

static int fill(region *r, const char *name) {
    FILE *file = mr_open_file(name, "rb");
    if (!file) return 0;
    size_t pattern = fread(r->data, 1, r->room, file);
    fclose(file);
    if (!pattern) return 0;
    for (size_t at = pattern; at < r->room; at += pattern) {
        size_t left = r->room - at;
        memcpy(r->data + at, r->data, left < pattern ? left : pattern);
    }
    return 1;
}

/* Values of one kind cost the same, whosever they are: what is there is kept while there is enough of it, and some more
 * is made at once. In huge pages: a package's parameters lie in large folios where the system has them, and with small
 * pages it is the walks through page tables that would be measured. */
static int use_region(int32_t number, size_t bytes, const char *kind, const char *file) {
    region *r = &mr_regions[number];
    size_t room = bytes + bytes / 8;
    if (r->kind && r->room >= bytes && !strcmp(r->kind, kind)) {
        r->bytes = bytes;
        return 1;
    }
    if (r->data) munmap(r->data, r->room);
    free(r->kind);
    *r = (region){.kind = copied(kind), .bytes = bytes, .room = room};
    void *memory = mmap(NULL, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        free(r->kind);
        *r = (region){0};
        return 0;
    }
    r->data = memory;
    madvise(memory, room, MADV_HUGEPAGE);
    return fill(r, file);
}

/* ---- reading ---- */

const char *mr_word(void) {
    const char *found = strtok(NULL, " \n");
    if (!found) mr_die("a line of a job ends too early", "");
    return found;
}

uint64_t mr_number(uint64_t most) {
    const char *text = mr_word();
    char *end;
    uint64_t value = strtoull(text, &end, 10);
    if (*end || value > most) mr_die("not a number, or too large", text);
    return value;
}

static double real(void) {
    const char *text = mr_word();
    char *end;
    double value = strtod(text, &end);
    if (*end) mr_die("not a number", text);
    return value;
}

static void read_buffer(job *j) {
    if (j->buffers == MOST_BUFFERS) mr_die("too many buffers", "");
    buffer *b = &j->buffer[j->buffers++];
    b->bytes = mr_number(SIZE_MAX / 4);
    b->item = mr_number(64);
    const char *kind = mr_word();
    b->source = !strcmp(kind, "file") ? CONTENTS : !strcmp(kind, "cold") ? COLD : POISONED;
    if (b->source != POISONED) b->file = copied(mr_word());
    if (b->source == COLD) b->region = (int32_t)mr_number((uint64_t)j->regions - 1);
}

static void read_step(job *j) {
    if (!j->kernels) mr_die("a step before its kernel", "");
    kernel *k = &j->kernel[j->kernels - 1];
    if (k->count == MOST_STEPS) mr_die("too many steps", "");
    k->steps = realloc(k->steps, ((size_t)k->count + 1) * sizeof *k->steps);
    if (!k->steps) mr_die("out of memory for", "steps");
    step *s = &k->steps[k->count++];
    memset(s, 0, sizeof *s);
    s->symbol = copied(mr_word());
    s->extent = (int32_t)mr_number(INT32_MAX);
    s->scratch = mr_number(SIZE_MAX / 4);
    s->serial = (int32_t)mr_number(1);
    for (const char *text; (text = strtok(NULL, " \n"));) {
        if (s->count == MOST_WORDS - 3) mr_die("too many arguments", s->symbol);
        s->buffers[s->count] = atoi(text);
        if (s->buffers[s->count] < 0 || s->buffers[s->count++] >= j->buffers) mr_die("no such buffer", text);
    }
}

static int read_line(job *j, char *line) {
    const char *key = strtok(line, " \n");
    if (!key) return 1;
    if (!strcmp(key, "threads")) j->threads = (int32_t)mr_number(1024);
    else if (!strcmp(key, "flush")) j->flush = (int32_t)mr_number(1);
    else if (!strcmp(key, "limit")) j->limit = real(), j->limit_bytes = mr_number(UINT64_MAX);
    else if (!strcmp(key, "place")) snprintf(j->place, sizeof j->place, "%s", mr_word());
    else if (!strcmp(key, "poison")) j->poison = (uint8_t)mr_number(255);
    else if (!strcmp(key, "cuts")) j->cuts = (int32_t)mr_number(1024);
    else if (!strcmp(key, "region")) {
        if (j->regions == MOST_REGIONS) mr_die("too many regions", "");
        size_t bytes = mr_number(SIZE_MAX / 4);
        char kind[64];
        snprintf(kind, sizeof kind, "%s", mr_word());
        if (!use_region(j->regions++, bytes, kind, mr_word())) return 0;
    } else if (!strcmp(key, "buffer")) read_buffer(j);
    else if (!strcmp(key, "kernel")) {
        if (j->kernels == 2) mr_die("too many kernels", "");
        j->kernel[j->kernels++].library = copied(mr_word());
    } else if (!strcmp(key, "step")) read_step(j);
    else if (!strcmp(key, "output")) {
        if (j->outputs == MOST_BUFFERS) mr_die("too many outputs", "");
        j->output[j->outputs++] = (int32_t)mr_number((uint64_t)j->buffers - 1);
    } else if (!strcmp(key, "time")) {
        j->timed = 1;
        j->sample = real();
        j->least = (int32_t)mr_number(MOST_SAMPLES);
        j->most = (int32_t)mr_number(MOST_SAMPLES);
        j->noise = real();
        j->seconds = real();
        j->stop = real();
        j->near = real();
    } else mr_die("an unknown line of a job", key);
    return 1;
}

int mr_read_job(job *j, const char *name) {
    static char line[LINE];
    int room = 1;
    *j = (job){.threads = 1, .limit = 10, .limit_bytes = 1 << 30, .cuts = 1, .place = "low", .poison = 255};
    FILE *file = mr_open_file(name, "r");
    if (!file) mr_die("cannot read the job", name);
    while (fgets(line, sizeof line, file)) room &= read_line(j, line);
    fclose(file);
    if (!j->kernels) mr_die("no kernel in the job", name);
    return room;
}

void mr_free_job(job *j) {
    for (int32_t i = 0; i < j->buffers; i++) free(j->buffer[i].file);
    for (int32_t k = 0; k < j->kernels; k++) {
        for (int32_t i = 0; i < j->kernel[k].count; i++) free((char *)(uintptr_t)j->kernel[k].steps[i].symbol);
        free(j->kernel[k].steps);
        free(j->kernel[k].library);
    }
    free(j);
}

