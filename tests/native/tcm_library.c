/* Stands for libspine_tcm in tests. What it is to be is in the environment:
   TCM_FAKE=1, TCM_ABSENT=1, TCM_BLOCK_BYTES, TCM_TAKEN=block:thread (taken before anybody asked), TCM_KEEPS=1: does not
   let anything be taken back, TCM_LOG: a file that gets a line for each call. */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { BLOCKS = 8 };
static void *memory[BLOCKS];
static int owner[BLOCKS];

static long number(const char *name, long otherwise) {
    const char *text = getenv(name);
    return text ? atol(text) : otherwise;
}
static size_t block_bytes(void) { return (size_t)number("TCM_BLOCK_BYTES", 393216); }
static void note(const char *what, int id) {
    const char *path = getenv("TCM_LOG");
    FILE *file = path ? fopen(path, "a") : NULL;
    if (!file) return;
    fprintf(file, "%s %d\n", what, id);
    fclose(file);
}
static int owner_of(int id) {
    int taken = -1, thread = 0;
    const char *text = getenv("TCM_TAKEN");
    if (text && sscanf(text, "%d:%d", &taken, &thread) == 2 && taken == id) return thread;
    return owner[id];
}

int spine_tcm_runtime_is_available(void) { return getenv("TCM_ABSENT") == NULL; }
int spine_tcm_runtime_layout_info(size_t *info) {
    info[0] = block_bytes();
    info[1] = BLOCKS;
    *(int *)(info + 2) = getenv("TCM_FAKE") != NULL;
    return 0;
}
struct block {
    int id;
    void *va;
    size_t size;
    uint64_t phys_addr, cpu_affinity_mask;
    int owner_tid, is_acquired;
};
int spine_tcm_runtime_mem_info(int id, struct block *info) {
    *info = (struct block){id, memory[id], block_bytes(), 0, 1u << id, owner_of(id), owner_of(id) != 0};
    return 0;
}
void *spine_tcm_runtime_mem_try_wait(int id, size_t timeout) {
    (void)timeout;
    if (owner_of(id)) return NULL;
    if (!memory[id]) memory[id] = aligned_alloc(4096, (block_bytes() + 4095) / 4096 * 4096);
    owner[id] = (int)syscall(SYS_gettid);
    note("taken", id);
    return memory[id];
}
int spine_tcm_runtime_mem_release(int id) {
    owner[id] = 0;
    note("released", id);
    return 0;
}
int spine_tcm_runtime_mem_force_release(int id) {
    if (getenv("TCM_KEEPS")) return -1;
    unsetenv("TCM_TAKEN");
    note("forced", id);
    return spine_tcm_runtime_mem_release(id);
}
