/* Runs kernels of shared libraries, each in a process of its own, and says what they computed and how long they took.
 *
 *     runner FOLDER        reads commands on stdin until it ends, answers each with one JSON line on stdout
 *
 *     features NAME...     {"lacks": ""}, or the first of these CPU features that this machine does not have
 *     file NAME BYTES      the bytes follow; they become FOLDER/NAME. For who cannot write there: {}
 *     drop NAME...         removes files. {}
 *     job NAME             does what FOLDER/NAME says. {"outcome": ..., "output": N}, and N bytes follow
 *
 * A job is lines of words. Kernels' arguments are buffers by number, in the order of their lines:
 *
 *     threads N            flush 0|1         limit SECONDS BYTES: what its process may take
 *     place low|high|odd   poison BYTE       cuts N: how the kernel is run whose outputs are looked at
 *     region BYTES KIND FILE    memory filled with copies of FILE, kept for regions of one kind: where constants lie cold
 *     buffer BYTES ITEM poison               ITEM bytes an element; filled with the poison
 *     buffer BYTES ITEM file NAME            contents that no kernel may change
 *     buffer BYTES ITEM cold NAME REGION     the same, but calls that are timed read it from the next place in a region
 *     kernel FILE          candidate, then (as one may) what it is compared with
 *     step SYMBOL EXTENT SCRATCH SERIAL BUFFER...
 *     output BUFFER        is sent back as the candidate's first run left it; several ones follow one another
 *     time SAMPLE LEAST MOST NOISE SECONDS STOP NEAR   (none: only one run)
 *
 * Timed samples are of the candidate and of what it is compared with by turns. A sample repeats calls until it takes
 * SAMPLE seconds; LEAST to MOST pairs are taken, until the standard error of the median is below NOISE of it, or SECONDS
 * are over; a candidate that has taken more than STOP seconds (0: any) each time is not timed further, and one that
 * surely takes more than NEAR (0: any) no more than LEAST times.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runner.h"

static void say(const char *text) {
    for (; *text; text++) {
        if (*text == '"' || *text == '\\') putchar('\\');
        putchar(*text < ' ' ? ' ' : *text);
    }
}

static void answer(const result *r, const char *outcome, const char *message, size_t output) {
    printf("{\"outcome\": \"%s\", \"message\": \"", outcome);
    say(message);
    printf("\", \"buffer\": %d, \"seconds\": %.9e, \"reference_seconds\": %.9e, \"noise\": %.6e, \"repeats\": %d, ",
           (int)r->buffer, r->seconds, r->reference, r->noise, (int)r->repeats);
    printf("\"output\": %zu}\n", output);
}

/* Waits until the child has ended (its end of the pipe closes) or `seconds` are over; ends with whoever asked. */
static int ended(int pipe_end, pid_t child, double seconds) {
    struct pollfd wanted[2] = {{.fd = pipe_end}, {.fd = 0}};
    uint64_t until = mc_now() + (uint64_t)(1e9 * seconds);
    for (;;) {
        uint64_t at = mc_now();
        if (at >= until) return 0;
        uint64_t left = (until - at) / 1000000 + 1;
        if (poll(wanted, 2, left > 1000000 ? 1000000 : (int)left) < 0 && errno != EINTR) mr_die("poll", strerror(errno));
        if (wanted[0].revents) return 1;
        if (wanted[1].revents & (POLLHUP | POLLERR)) {
            kill(child, SIGKILL);
            exit(0);
        }
    }
}

static void report(const job *j, const result *r, const uint8_t *outputs, int in_time, int status, size_t bytes) {
    const char *when = r->timed ? "while it was timed" : "in its first run";
    char text[256];
    size_t output = 0;
    if (!in_time) {
        snprintf(text, sizeof text, "did not end within %g s, %s", j->limit, when);
        answer(r, "timeout", text, 0);
    } else if (WIFSIGNALED(status)) {
        snprintf(text, sizeof text, "%s (signal %d), %s", strsignal(WTERMSIG(status)), WTERMSIG(status), when);
        answer(r, "crashed", text, 0);
    } else if (r->failed) {
        answer(r, r->outcome, r->message, 0);
    } else if (!r->done) {
        snprintf(text, sizeof text, "ended its process with %d, %s", WEXITSTATUS(status), when);
        answer(r, "crashed", text, 0);
    } else {
        answer(r, "ok", "", output = bytes);
    }
    if (output) fwrite(outputs, 1, output, stdout);
}

static void *shared(size_t bytes) {
    void *memory = mmap(NULL, bytes ? bytes : 1, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) mr_die("out of memory for", "results");
    return memory;
}

static void run_job(const char *name) {
    job *j = calloc(1, sizeof *j);
    if (!j) mr_die("out of memory for", name);
    int room = mr_read_job(j, name);
    size_t bytes = 0;
    for (int32_t i = 0; i < j->outputs; i++) bytes += j->buffer[j->output[i]].bytes;
    result *r = shared(sizeof *r);
    uint8_t *outputs = shared(bytes);
    r->buffer = -1;
    for (int32_t i = 0; i < MOST_REGIONS; i++) r->cursor[i] = mr_regions[i].cursor;
    int ends[2], status = 0, in_time;
    if (!room) {
        answer(r, "crashed", "there is no memory for cold constants", 0);
    } else {
        pid_t server = getpid();
        fflush(stdout);
        if (pipe(ends)) mr_die("pipe", strerror(errno));
        pid_t child = fork();
        if (child < 0) mr_die("fork", strerror(errno));
        if (!child) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            if (getppid() != server) _exit(0);
            close(ends[0]);
            int nowhere = open("/dev/null", O_RDWR); /* what a kernel prints is no answer */
            dup2(nowhere, 0);
            dup2(nowhere, 1);
            mr_do_job(j, r, outputs);
            _exit(0);
        }
        close(ends[1]);
        in_time = ended(ends[0], child, j->limit);
        if (!in_time) kill(child, SIGKILL);
        waitpid(child, &status, 0);
        close(ends[0]);
        report(j, r, outputs, in_time, status, bytes);
        for (int32_t i = 0; i < MOST_REGIONS; i++) mr_regions[i].cursor = r->cursor[i];
    }
    fflush(stdout);
    munmap(r, sizeof *r);
    munmap(outputs, bytes ? bytes : 1);
    mr_free_job(j);
}

static _Noreturn void cannot_write(const char *name) {
    char text[512];
    snprintf(text, sizeof text, "%s: %s", name, strerror(errno));
    mr_die("cannot write", text);
}

static void take_file(void) {
    const char *name = mr_word();
    FILE *file = mr_open_file(name, "wb");
    uint64_t bytes = mr_number(SIZE_MAX / 4);
    static uint8_t block[65536];
    if (!file) cannot_write(name);
    for (size_t n; bytes; bytes -= n) {
        n = fread(block, 1, bytes < sizeof block ? (size_t)bytes : sizeof block, stdin);
        if (!n) mr_die("a file ends too early", name);
        if (fwrite(block, 1, n, file) != n) cannot_write(name);
    }
    if (fclose(file)) cannot_write(name);
}

static void drop_files(void) {
    char path[8192];
    for (const char *name; (name = strtok(NULL, " \n"));) {
        mr_path_of(path, sizeof path, name);
        unlink(path);
    }
}

int main(int argc, char **argv) {
    static char line[LINE];
    if (argc != 2 || snprintf(mr_folder, sizeof mr_folder, "%s", argv[1]) >= (int)sizeof mr_folder) mr_die("usage", "runner FOLDER");
    while (fgets(line, sizeof line, stdin)) {
        const char *command = strtok(line, " \n"), *lacks = "";
        if (!command) continue;
        if (!strcmp(command, "job")) {
            run_job(mr_word());
            continue;
        }
        if (!strcmp(command, "file")) take_file();
        else if (!strcmp(command, "drop")) drop_files();
        else if (!strcmp(command, "features")) {
            for (const char *name; !*lacks && (name = strtok(NULL, " \n"));)
                if (mc_cpu_has(name) != MC_CPU_HAS) lacks = name;
            printf("{\"lacks\": \"");
            say(lacks);
            printf("\"}\n");
        } else mr_die("an unknown command", command);
        if (strcmp(command, "features")) printf("{}\n");
        fflush(stdout);
    }
    return 0;
}
