/* The files of a package: opened, and the manifest compared with the library; and the CPU with what the kernels use. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "modelc_runtime.h"

enum { MOST_MANIFEST_BYTES = 1 << 25 };
static const char SPACE[] = " \t\r\n";

/* What it may be a link to, and without waiting for the other end of a pipe. */
modelc_status mc_open_file(const char *folder, const char *name, int *fd, uint64_t *bytes) {
    char path[PATH_MAX];
    uint8_t first;
    if (snprintf(path, sizeof path, "%s/%s", folder, name) >= (int)sizeof path)
        return mc_fail(MODELC_NO_FILE, "the path of the package is longer than %d characters", PATH_MAX);
    do *fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    while (*fd < 0 && errno == EINTR); /* a signal of the application's */
    if (*fd < 0) return mc_fail(MODELC_NO_FILE, "cannot open %s: %s", path, strerror(errno));
    /* What has no end, or is empty and a device, or a folder, which cannot be read. Not by stat, which is another function
     * in every C library. */
    const off_t end = lseek(*fd, 0, SEEK_END);
    if (end < 0 || lseek(*fd, 0, SEEK_SET) || (read(*fd, &first, 1) < 0 && errno == EISDIR) || lseek(*fd, 0, SEEK_SET)) {
        close(*fd);
        return mc_fail(MODELC_NO_FILE, "%s is not a regular file", path);
    }
    *bytes = (uint64_t)end;
    return MODELC_OK;
}

/* The text after `"key":`. In JSON a quote inside a string is escaped, so `"key"` before a colon can only be a key. */
static const char *json_value(const char *text, const char *key) {
    char quoted[64];
    snprintf(quoted, sizeof quoted, "\"%s\"", key);
    for (const char *at = text; (at = strstr(at, quoted));) {
        at += strlen(quoted);
        const char *value = at + strspn(at, SPACE);
        if (*value++ == ':') return value + strspn(value, SPACE);
    }
    return NULL;
}

/* The whole number that a text begins with. Not by strtol, which newer C libraries have under another name. */
static long number_at(const char *text) {
    long number = 0;
    while (*text >= '0' && *text <= '9' && number < LONG_MAX / 10 - 1) number = 10 * number + (*text++ - '0');
    return number;
}

/* Whether a text is one object from its first character to its last, as far as brackets and quotes tell. One that was cut is
 * not. */
static int is_whole(const char *text, size_t bytes) {
    size_t at = strspn(text, SPACE), depth = 0;
    int quoted = 0;
    if (text[at] != '{') return 0;
    do {
        const char c = text[at++];
        if (quoted && c == '\\') at++;
        else if (c == '"') quoted = !quoted;
        else if (!quoted && (c == '{' || c == '[')) depth++;
        else if (!quoted && (c == '}' || c == ']')) depth--;
    } while (depth && at < bytes);
    return !depth && at + strspn(text + at, SPACE) == bytes;
}

static modelc_status compare_manifest(const char *folder, const char *text, size_t bytes) {
    if (!is_whole(text, bytes))
        return mc_fail(MODELC_MISMATCH, "%s/manifest.json is damaged: it is not one JSON object; copy the whole package again",
                    folder);
    const char *schema = json_value(text, "schema_version"), *build = json_value(text, "build_id");
    size_t n = strlen(mc_the_model.build_id);
    if (!schema || !build)
        return mc_fail(MODELC_MISMATCH, "%s/manifest.json is not a manifest: it names no schema_version or no build_id",
                    folder);
    long version = number_at(schema);
    if (version != mc_the_model.schema_version)
        return mc_fail(MODELC_BAD_SCHEMA, "%s/manifest.json is of schema %ld; this library knows schema %d", folder, version,
                    (int)mc_the_model.schema_version);
    if (*build == '"' && !strncmp(build + 1, mc_the_model.build_id, n) && build[n + 1] == '"') return MODELC_OK;
    return mc_fail(MODELC_MISMATCH,
                "%s/manifest.json and the loaded library come from different builds (the library's is %s): copy the "
                "whole package again; or, if it was replaced while this program ran, start that again; or, if the program "
                "is linked with several packages, compile each with a --prefix of its own",
                folder, mc_the_model.build_id);
}

/* How many bytes there were; -1, and errno, where they cannot be read. Signals of the application's may come in between. */
static ssize_t read_whole(int fd, char *text, size_t bytes) {
    size_t got = 0;
    while (got < bytes) {
        ssize_t n = read(fd, text + got, bytes - got);
        if (n < 0 && errno != EINTR) return -1;
        if (n == 0) break;
        if (n > 0) got += (size_t)n;
    }
    return (ssize_t)got;
}

modelc_status mc_check_manifest(const char *folder) {
    int fd;
    uint64_t bytes;
    modelc_status status = mc_open_file(folder, "manifest.json", &fd, &bytes);
    if (status) return status;
    if (bytes > MOST_MANIFEST_BYTES) {
        close(fd);
        return mc_fail(MODELC_MISMATCH, "%s/manifest.json has %llu bytes; at most %d are possible", folder,
                    (unsigned long long)bytes, (int)MOST_MANIFEST_BYTES);
    }
    char *text = malloc((size_t)bytes + 1);
    ssize_t got = text ? read_whole(fd, text, (size_t)bytes) : 0;
    int error = errno;
    close(fd);
    if (!text) return mc_fail(MODELC_NO_MEMORY, "out of memory");
    if (got < 0) {
        status = mc_fail(MODELC_NO_FILE, "cannot read %s/manifest.json: %s", folder, strerror(error));
    } else {
        text[got] = 0;
        status = compare_manifest(folder, text, (size_t)got);
    }
    free(text);
    return status;
}
