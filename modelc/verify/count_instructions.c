/* A plugin of qemu-user that counts the instructions which a program executes. What it uses of QEMU's interface is
   declared here; VERSION is that of the interface which it says it was made for. */

#include <inttypes.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

struct block; /* of translated code */
struct info;

void qemu_plugin_register_vcpu_tb_trans_cb(uint64_t plugin, void (*translated)(uint64_t, struct block *));
void qemu_plugin_register_vcpu_tb_exec_cb(struct block *, void (*run)(unsigned, void *), int registers, void *given);
void qemu_plugin_register_atexit_cb(uint64_t plugin, void (*ended)(uint64_t, void *), void *given);
size_t qemu_plugin_tb_n_insns(const struct block *);

int qemu_plugin_version = VERSION;
static _Atomic uint64_t executed;

static void run(unsigned processor, void *instructions) {
    (void)processor;
    atomic_fetch_add_explicit(&executed, (uintptr_t)instructions, memory_order_relaxed);
}

static void translated(uint64_t plugin, struct block *block) {
    (void)plugin;
    qemu_plugin_register_vcpu_tb_exec_cb(block, run, 0, (void *)(uintptr_t)qemu_plugin_tb_n_insns(block));
}

static void ended(uint64_t plugin, void *given) {
    (void)plugin, (void)given;
    fprintf(stderr, "Collected : %" PRIu64 "\n", executed);
}

int qemu_plugin_install(uint64_t plugin, const struct info *info, int count, char **arguments) {
    (void)info, (void)count, (void)arguments;
    qemu_plugin_register_vcpu_tb_trans_cb(plugin, translated);
    qemu_plugin_register_atexit_cb(plugin, ended, NULL);
    return 0;
}
