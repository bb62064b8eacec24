/* Executes Intel AMX for a CPU that lacks it: preloaded (LD_PRELOAD), it answers the SIGILL of each instruction.
 *
 * What is emulated is what kernels are made of, with the semantics of Intel's manual (volume 2): LDTILECFG, STTILECFG,
 * TILERELEASE, TILEZERO, TILELOADD, TILELOADDT1, TILESTORED, TDPBF16PS, TDPBSSD, TDPBSUD, TDPBUSD, TDPBUUD. Any other
 * illegal instruction, and any of these that Intel's CPU would refuse, ends the process as it would without this.
 */
#define _GNU_SOURCE
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>

enum { TILES = 8, ROWS = 16, ROW_BYTES = 64, LANES = 16 };
enum { NP, P66, PF3, PF2 };              /* VEX.pp */
enum { A_SIGNED = 1, B_SIGNED = 2 };

struct config { /* what LDTILECFG reads */
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
};

struct tile { /* what lies beyond the configured rows and columns is zero */
    union {
        uint8_t bytes[ROWS][ROW_BYTES];
        uint16_t halves[ROWS][ROW_BYTES / 2];
        uint32_t words[ROWS][LANES];
        float floats[ROWS][LANES];
    };
};

struct state { /* of a thread */
    struct config config;
    struct tile tile[TILES];
};

struct instruction {
    int prefix, opcode;
    int tile, other, third; /* ModRM.reg, ModRM.rm, VEX.vvvv */
    uint8_t *address;       /* of an operand in memory */
    int64_t stride;         /* the index register times its scale: bytes between rows */
    int length;
    int in_memory;
};

/* A pointer, for a library that is loaded late has little thread-local memory; mmap, for a handler may not malloc. */
static __thread struct state *state_of_thread __attribute__((tls_model("initial-exec")));

static struct state *state(void) {
    if (!state_of_thread) {
        size_t bytes = sizeof(struct state);
        void *made = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (made == MAP_FAILED) abort();
        state_of_thread = made;
    }
    return state_of_thread;
}

/* --- decoding ---------------------------------------------------------------------------------------------------- */

static int64_t general(const greg_t *registers, int number) {
    static const int order[16] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP, REG_RSI, REG_RDI,
                                  REG_R8,  REG_R9,  REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15};
    return registers[order[number]];
}

/* The instruction at the program counter, where it is VEX.128.0F38.W0 with one of AMX's opcodes. */
static int decode(const greg_t *registers, struct instruction *in) {
    const uint8_t *at = (const uint8_t *)registers[REG_RIP], *first = at;
    if (at[0] != 0xc4 || (at[1] & 0x1f) != 2 || at[2] & 0x84) return 0; /* W and L are zero */
    int no_r = at[1] & 0x80, no_x = at[1] & 0x40, no_b = at[1] & 0x20; /* inverted: set without an extension */
    in->prefix = at[2] & 3;
    in->third = ~(at[2] >> 3) & 15;
    in->opcode = at[3];
    if (in->opcode != 0x49 && in->opcode != 0x4b && in->opcode != 0x5c && in->opcode != 0x5e) return 0;
    int mode = at[4] >> 6, rm = at[4] & 7;
    in->tile = at[4] >> 3 & 7;
    in->other = rm;
    at += 5;
    in->in_memory = mode != 3;
    if (!no_r || in->other >= TILES || in->third >= (in->opcode == 0x5c || in->opcode == 0x5e ? TILES : 1)) return 0;
    if (in->in_memory) {
        int64_t base = 0;
        int32_t displacement = 0;
        in->stride = 0;
        int relative = mode == 0 && rm == 5, wide = mode == 2 || relative;
        if (rm == 4) {
            int scale = *at >> 6, index = (*at >> 3 & 7) | (no_x ? 0 : 8), number = (*at & 7) | (no_b ? 0 : 8);
            if (mode == 0 && (*at & 7) == 5) wide = 1;
            else base = general(registers, number);
            if (index != 4) in->stride = general(registers, index) * (INT64_C(1) << scale);
            at++;
        } else if (!relative) {
            base = general(registers, rm | (no_b ? 0 : 8));
        }
        if (wide) memcpy(&displacement, at, 4), at += 4;
        else if (mode == 1) displacement = (int8_t)*at++;
        if (relative) base = (int64_t)(intptr_t)at;
        in->address = (uint8_t *)(intptr_t)(base + displacement);
    }
    in->length = (int)(at - first);
    return 1;
}

/* --- executing --------------------------------------------------------------------------------------------------- */

static void clear_beyond(struct tile *tile, int rows, int row_bytes) {
    for (int m = 0; m < rows; m++) memset(tile->bytes[m] + row_bytes, 0, (size_t)(ROW_BYTES - row_bytes));
    memset(tile->bytes[rows], 0, (size_t)(ROWS - rows) * ROW_BYTES);
}

static int configure(struct state *s, const uint8_t *from) {
    struct config config;
    memcpy(&config, from, sizeof config);
    if (config.palette > 1) return 0;
    if (config.palette == 0) {
        memset(s, 0, sizeof *s);
        return 1;
    }
    if (config.start_row) return 0; /* of a load that was interrupted: none of these is */
    for (int i = 0; i < 14; i++)
        if (config.reserved[i]) return 0;
    for (int i = 0; i < 16; i++) {
        int columns = config.row_bytes[i], rows = config.rows[i];
        if (columns > ROW_BYTES || rows > ROWS || !columns != !rows || (i >= TILES && rows)) return 0;
    }
    memset(s->tile, 0, sizeof s->tile);
    s->config = config;
    return 1;
}

enum { FLUSHING = 0x9fc0 }; /* of MXCSR: subnormal operands and results count as zero, no traps, to the nearest */

static float bfloat16(uint16_t bits) {
    uint32_t wide = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &wide, 4);
    return value;
}

/* Even and odd products are added up apart, then both to C. The handler's end restores MXCSR. */
static void multiply_bfloat16(struct tile *c, const struct tile *a, const struct tile *b, int rows, int pairs) {
    float right[ROWS][2][LANES];
    __builtin_ia32_ldmxcsr(FLUSHING);
    for (int k = 0; k < pairs; k++)
        for (int n = 0; n < LANES; n++)
            for (int half = 0; half < 2; half++) right[k][half][n] = bfloat16(b->halves[k][2 * n + half]);
    for (int m = 0; m < rows; m++) {
        float sums[2][LANES] = {{0}};
        for (int k = 0; k < pairs; k++)
            for (int half = 0; half < 2; half++) {
                float left = bfloat16(a->halves[m][2 * k + half]);
                for (int n = 0; n < LANES; n++)
                    sums[half][n] = __builtin_fmaf(left, right[k][half][n], sums[half][n]);
            }
        for (int n = 0; n < LANES; n++) c->floats[m][n] += sums[0][n] + sums[1][n];
    }
}

static void multiply_bytes(struct tile *c, const struct tile *a, const struct tile *b, int rows, int fours, int signs) {
    for (int m = 0; m < rows; m++)
        for (int k = 0; k < fours; k++)
            for (int n = 0; n < LANES; n++) {
                int sum = 0;
                for (int i = 0; i < 4; i++) {
                    uint8_t x = a->bytes[m][4 * k + i], y = b->bytes[k][4 * n + i];
                    sum += (signs & A_SIGNED ? (int8_t)x : x) * (signs & B_SIGNED ? (int8_t)y : y);
                }
                c->words[m][n] += (uint32_t)sum; /* wraps, as the instruction does */
            }
}

static int multiply(struct state *s, const struct instruction *in) {
    int c = in->tile, a = in->other, b = in->third, bytes = in->opcode == 0x5e;
    if (in->in_memory || c == a || c == b || a == b || (!bytes && in->prefix != PF3)) return 0;
    const uint16_t *width = s->config.row_bytes;
    const uint8_t *rows = s->config.rows;
    int known = rows[c] && rows[a] && rows[b] && !(width[c] % 4 || width[a] % 4 || width[b] % 4);
    if (!known || rows[a] != rows[c] || width[b] != width[c] || rows[b] != width[a] / 4) return 0;
    struct tile *to = &s->tile[c], *left = &s->tile[a], *right = &s->tile[b];
    static const int signs[] = {[NP] = 0, [P66] = B_SIGNED, [PF3] = A_SIGNED, [PF2] = A_SIGNED | B_SIGNED};
    if (bytes) multiply_bytes(to, left, right, rows[c], width[a] / 4, signs[in->prefix]);
    else multiply_bfloat16(to, left, right, rows[c], width[a] / 4);
    clear_beyond(to, rows[c], width[c]);
    return 1;
}

static int load_or_store(struct state *s, const struct instruction *in) {
    if (!in->in_memory || in->other != 4 || in->prefix == NP || !s->config.rows[in->tile]) return 0; /* other 4: SIB */
    int rows = s->config.rows[in->tile], bytes = s->config.row_bytes[in->tile];
    struct tile loaded = {{{{0}}}}; /* a load that faults leaves the tile as it was */
    for (int m = 0; m < rows; m++) {
        uint8_t *there = in->address + m * in->stride;
        if (in->prefix == PF3) memcpy(there, s->tile[in->tile].bytes[m], (size_t)bytes);
        else memcpy(loaded.bytes[m], there, (size_t)bytes);
    }
    if (in->prefix != PF3) s->tile[in->tile] = loaded;
    return 1;
}

static int setting(struct state *s, const struct instruction *in) {
    if (in->prefix == NP && in->in_memory) return in->tile == 0 && configure(s, in->address);
    if (in->prefix == P66 && in->in_memory && in->tile == 0) {
        memcpy(in->address, &s->config, sizeof s->config);
        return 1;
    }
    if (in->prefix == NP && in->tile == 0 && in->other == 0) {
        memset(s, 0, sizeof *s);
        return 1;
    }
    if (in->prefix == PF2 && !in->in_memory && in->other == 0 && s->config.rows[in->tile]) {
        memset(&s->tile[in->tile], 0, sizeof *s->tile);
        return 1;
    }
    return 0;
}

static int execute(struct state *s, const struct instruction *in) {
    return in->opcode == 0x49 ? setting(s, in) : in->opcode == 0x4b ? load_or_store(s, in) : multiply(s, in);
}

static void on_illegal_instruction(int number, siginfo_t *info, void *context) {
    greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
    struct instruction in;
    (void)info;
    if (decode(registers, &in) && execute(state(), &in)) registers[REG_RIP] += in.length;
    else signal(number, SIG_DFL); /* it is raised again, and ends the process */
}

__attribute__((constructor)) static void begin(void) {
    struct sigaction action = {.sa_sigaction = on_illegal_instruction, .sa_flags = SA_SIGINFO | SA_NODEFER};
    sigaction(SIGILL, &action, NULL);
}
