/* Loads the shared library of one kernel. What it calls is taken from the table below, so that a runner that is linked
 * statically needs no library where it runs, and kernels call the same functions wherever they are measured. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <link.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runner.h"

#if __SIZEOF_POINTER__ == 8
#define SYMBOL_OF(info) ELF64_R_SYM(info)
#define TYPE_OF(info) ELF64_R_TYPE(info)
#else
#define SYMBOL_OF(info) ELF32_R_SYM(info)
#define TYPE_OF(info) ELF32_R_TYPE(info)
#endif

/* Relocations: an address with an addend; that of a function or an object; one within the library. */
#if defined __x86_64__
enum { MACHINE = EM_X86_64, ABSOLUTE = R_X86_64_64, OBJECT = R_X86_64_GLOB_DAT, CALL = R_X86_64_JUMP_SLOT, WITHIN = R_X86_64_RELATIVE };
#elif defined __aarch64__
enum { MACHINE = EM_AARCH64, ABSOLUTE = R_AARCH64_ABS64, OBJECT = R_AARCH64_GLOB_DAT, CALL = R_AARCH64_JUMP_SLOT, WITHIN = R_AARCH64_RELATIVE };
#elif defined __arm__
enum { MACHINE = EM_ARM, ABSOLUTE = R_ARM_ABS32, OBJECT = R_ARM_GLOB_DAT, CALL = R_ARM_JUMP_SLOT, WITHIN = R_ARM_RELATIVE };
#elif defined __riscv
enum { MACHINE = EM_RISCV, ABSOLUTE = R_RISCV_64, OBJECT = -1, CALL = R_RISCV_JUMP_SLOT, WITHIN = R_RISCV_RELATIVE };
#endif

typedef struct {
    const char *name;
    void (*function)(void);
} known;

#define ONE(name) {#name, (void (*)(void))name},
#define BOTH(name) ONE(name) ONE(name##f)
static const known KNOWN[] = {
    BOTH(acos) BOTH(acosh) BOTH(asin) BOTH(asinh) BOTH(atan) BOTH(atan2) BOTH(atanh) BOTH(cbrt) BOTH(ceil) BOTH(copysign)
    BOTH(cos) BOTH(cosh) BOTH(erf) BOTH(erfc) BOTH(exp) BOTH(exp2) BOTH(expm1) BOTH(fabs) BOTH(fdim) BOTH(floor) BOTH(fma)
    BOTH(fmax) BOTH(fmin) BOTH(fmod) BOTH(frexp) BOTH(hypot) BOTH(ilogb) BOTH(ldexp) BOTH(lgamma) BOTH(llrint)
    BOTH(llround) BOTH(log) BOTH(log10) BOTH(log1p) BOTH(log2) BOTH(logb) BOTH(lrint) BOTH(lround) BOTH(modf)
    BOTH(nearbyint) BOTH(nextafter) BOTH(pow) BOTH(remainder) BOTH(remquo) BOTH(rint) BOTH(round) BOTH(scalbln)
    BOTH(scalbn) BOTH(sin) BOTH(sinh) BOTH(sqrt) BOTH(tan) BOTH(tanh) BOTH(tgamma) BOTH(trunc)
    ONE(memcmp) ONE(memcpy) ONE(memmove) ONE(memset)
    ONE(abort) ONE(raise) /* of compilers' own functions for what a machine cannot divide */
};

static void (*find_known(const char *name))(void) {
    for (size_t i = 0; i < sizeof KNOWN / sizeof *KNOWN; i++)
        if (!strcmp(KNOWN[i].name, name)) return KNOWN[i].function;
    return NULL;
}

static const char *refuse(char *why, size_t room, const char *format, const char *detail) {
    snprintf(why, room, format, detail);
    return why;
}

/* The file's bytes, or NULL. */
static uint8_t *contents(const char *path, size_t *bytes) {
    int file = open(path, O_RDONLY);
    struct stat about;
    if (file < 0) return NULL;
    uint8_t *data = fstat(file, &about) ? NULL : malloc((size_t)about.st_size + 1);
    *bytes = 0;
    for (ssize_t n = 1; data && n > 0 && *bytes < (size_t)about.st_size; *bytes += (size_t)n) {
        n = read(file, data + *bytes, (size_t)about.st_size - *bytes);
        if (n < 0) n = 0;
    }
    close(file);
    return data;
}

static const char *relocate(library *l, uintptr_t where, size_t info, intptr_t addend, int in_place, char *why, size_t room) {
    uintptr_t value = (uintptr_t)l->base, *at = (uintptr_t *)(l->base + where);
    size_t number = SYMBOL_OF(info);
    int type = (int)TYPE_OF(info);
    if (in_place && (type == ABSOLUTE || type == WITHIN)) addend = (intptr_t)*at;
    if (type != WITHIN) {
        if (type != ABSOLUTE && type != OBJECT && type != CALL) return refuse(why, room, "a relocation that is not known%s", "");
        if (number >= l->count) return refuse(why, room, "no such symbol%s", "");
        const ElfW(Sym) *symbol = &l->symbols[number];
        const char *name = l->names + symbol->st_name;
        if (symbol->st_shndx) value += symbol->st_value;
        else {
            value = (uintptr_t)find_known(name);
            if (!value && symbol->st_info >> 4 != STB_WEAK) return refuse(why, room, "it calls %s, which runners do not have", name);
        }
    }
    *at = value + (uintptr_t)addend;
    return NULL;
}

static const char *relocate_all(library *l, uintptr_t table, size_t bytes, int addends, char *why, size_t room) {
    const char *wrong = NULL;
    if (addends)
        for (size_t i = 0; i < bytes / sizeof(ElfW(Rela)) && !wrong; i++) {
            const ElfW(Rela) *r = (const ElfW(Rela) *)(l->base + table) + i;
            wrong = relocate(l, r->r_offset, r->r_info, r->r_addend, 0, why, room);
        }
    else
        for (size_t i = 0; i < bytes / sizeof(ElfW(Rel)) && !wrong; i++) {
            const ElfW(Rel) *r = (const ElfW(Rel) *)(l->base + table) + i;
            wrong = relocate(l, r->r_offset, r->r_info, 0, 1, why, room);
        }
    return wrong;
}

static const char *link_it(library *l, const ElfW(Dyn) *entry, char *why, size_t room) {
    uintptr_t tables[3] = {0}; /* with addends, without, of calls */
    size_t bytes[3] = {0}, with_addends = 0;
    for (; entry->d_tag != DT_NULL; entry++) switch (entry->d_tag) {
            case DT_SYMTAB: l->symbols = (const ElfW(Sym) *)(l->base + entry->d_un.d_ptr); break;
            case DT_STRTAB: l->names = (const char *)l->base + entry->d_un.d_ptr; break;
            case DT_RELA: tables[0] = entry->d_un.d_ptr; break;
            case DT_RELASZ: bytes[0] = entry->d_un.d_val; break;
            case DT_REL: tables[1] = entry->d_un.d_ptr; break;
            case DT_RELSZ: bytes[1] = entry->d_un.d_val; break;
            case DT_JMPREL: tables[2] = entry->d_un.d_ptr; break;
            case DT_PLTRELSZ: bytes[2] = entry->d_un.d_val; break;
            case DT_PLTREL: with_addends = entry->d_un.d_val == DT_RELA; break;
            case DT_INIT_ARRAY: return refuse(why, room, "it has constructors%s", "");
        }
    if (!l->symbols || !l->names) return refuse(why, room, "it has no symbols%s", "");
    const char *wrong = relocate_all(l, tables[0], bytes[0], 1, why, room);
    if (!wrong) wrong = relocate_all(l, tables[1], bytes[1], 0, why, room);
    return wrong ? wrong : relocate_all(l, tables[2], bytes[2], (int)with_addends, why, room);
}

const char *mr_load(library *l, const char *path, char *why, size_t room) {
    size_t bytes = 0, span = 0, align = 1;
    uint8_t *file = contents(path, &bytes);
    const ElfW(Ehdr) *head = (const ElfW(Ehdr) *)file;
    if (!file || bytes < sizeof *head || memcmp(head->e_ident, ELFMAG, SELFMAG) || head->e_machine != MACHINE ||
        head->e_phoff + head->e_phnum * sizeof(ElfW(Phdr)) > bytes || head->e_shoff + head->e_shnum * sizeof(ElfW(Shdr)) > bytes)
        return refuse(why, room, "it is no library of this machine%s", "");
    const ElfW(Phdr) *parts = (const ElfW(Phdr) *)(file + head->e_phoff);
    const ElfW(Shdr) *sections = (const ElfW(Shdr) *)(file + head->e_shoff);
    const ElfW(Dyn) *dynamic = NULL;
    *l = (library){0};
    for (int i = 0; i < head->e_phnum; i++) {
        if (parts[i].p_type == PT_TLS) return refuse(why, room, "it has variables of threads%s", "");
        if (parts[i].p_type != PT_LOAD) continue;
        if (parts[i].p_offset + parts[i].p_filesz > bytes) return refuse(why, room, "it is cut short%s", "");
        if (parts[i].p_vaddr + parts[i].p_memsz > span) span = parts[i].p_vaddr + parts[i].p_memsz;
        if (parts[i].p_align > align) align = parts[i].p_align;
    }
    if (align < (size_t)sysconf(_SC_PAGESIZE)) return refuse(why, room, "its pages are smaller than this machine's%s", "");
    uint8_t *memory = mmap(NULL, span + align, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return refuse(why, room, "there is no memory for it%s", "");
    l->base = (uint8_t *)(((uintptr_t)memory + align - 1) / align * align);
    for (int i = 0; i < head->e_phnum; i++) {
        if (parts[i].p_type == PT_LOAD) memcpy(l->base + parts[i].p_vaddr, file + parts[i].p_offset, parts[i].p_filesz);
        if (parts[i].p_type == PT_DYNAMIC) dynamic = (const ElfW(Dyn) *)(l->base + parts[i].p_vaddr);
    }
    for (int i = 0; i < head->e_shnum; i++)
        if (sections[i].sh_type == SHT_DYNSYM) l->count = sections[i].sh_size / sizeof(ElfW(Sym));
    if (!dynamic) return refuse(why, room, "it is no shared library%s", "");
    const char *wrong = link_it(l, dynamic, why, room);
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    for (int i = 0; i < head->e_phnum && !wrong; i++) {
        if (parts[i].p_type != PT_LOAD || parts[i].p_flags & PF_W) continue;
        uint8_t *from = l->base + parts[i].p_vaddr / page * page, *to = l->base + parts[i].p_vaddr + parts[i].p_memsz;
        __builtin___clear_cache((char *)from, (char *)to);
        if (mprotect(from, (size_t)(to - from), PROT_READ | (parts[i].p_flags & PF_X ? PROT_EXEC : 0)))
            wrong = refuse(why, room, "this machine does not let it be executed%s", "");
    }
    free(file);
    return wrong;
}

void *mr_symbol(const library *l, const char *name) {
    for (size_t i = 0; i < l->count; i++)
        if (l->symbols[i].st_shndx && !strcmp(l->names + l->symbols[i].st_name, name)) return l->base + l->symbols[i].st_value;
    return NULL;
}
