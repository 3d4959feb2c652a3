// libnybble_ime.so: executes IME instructions for any riscv64 program on a machine with vectors but without IME.
// Loaded before the program (LD_PRELOAD), it takes SIGILL, computes what the instruction would, and goes on after it.

#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <sched.h>
#include <ucontext.h>

#include "ime/machine.hpp"
#include "ime/nybble_ime.h"
#include "ime/patched_code.hpp"
#include "ime/vector_state.hpp"

namespace nybble::ime {

Machine machine;

namespace {

std::atomic<unsigned long long> counts[kInstructions];

bool set_in_environment(const char* name) {
    const char* value = std::getenv(name);
    return value && *value && std::strcmp(value, "0") != 0;
}

// What the program asked SIGILL to do.
struct sigaction program_action = {};
std::atomic_flag lock = ATOMIC_FLAG_INIT;

// Signals are blocked in the handler, so the holder of the lock is never interrupted by one that wants it.
class Locked {
  public:
    Locked() {
        while (lock.test_and_set(std::memory_order_acquire)) sched_yield();
    }
    ~Locked() { lock.clear(std::memory_order_release); }
};

using SigactionFunction = int (*)(int, const struct sigaction*, struct sigaction*);

int real_sigaction(int signal_number, const struct sigaction* action, struct sigaction* before) {
    static const auto function = reinterpret_cast<SigactionFunction>(dlsym(RTLD_NEXT, "sigaction"));
    return function(signal_number, action, before);
}

// The instruction stays illegal: what the program wants done then.
void deliver(siginfo_t* info, ucontext_t* context, const char* reason) {
    const auto pc = context->uc_mcontext.__gregs[REG_PC];
    info->si_addr = reinterpret_cast<void*>(pc);
    const struct sigaction action = program_action;
    if (!(action.sa_flags & SA_SIGINFO) && (action.sa_handler == SIG_DFL || action.sa_handler == SIG_IGN)) {
        if (reason) std::fprintf(stderr, "nybble_ime: illegal instruction at %#lx: %s\n", pc, reason);
        struct sigaction default_action = {};
        default_action.sa_handler = SIG_DFL;
        real_sigaction(SIGILL, &default_action, nullptr);
        return;  // it is executed again, and that ends the process
    }
    if (action.sa_flags & static_cast<int>(SA_RESETHAND)) {
        program_action = {};
    }
    sigset_t blocked = context->uc_sigmask;
    sigorset(&blocked, &blocked, &action.sa_mask);
    if (!(action.sa_flags & SA_NODEFER)) sigaddset(&blocked, SIGILL);
    pthread_sigmask(SIG_SETMASK, &blocked, nullptr);
    if (action.sa_flags & SA_SIGINFO) {
        action.sa_sigaction(SIGILL, info, context);
    } else {
        action.sa_handler(SIGILL);
    }
}

bool run_on(const Instruction& in, uint64_t vtype, uint8_t* registers, uint64_t bytes) {
    return run(in, vtype,
               {registers + in.vs1 * bytes, registers + in.vs2 * bytes, registers + in.parameters * bytes,
                registers + in.vd * bytes});
}

// The four bytes at pc, or the two of a compressed instruction. Of those that another thread writes a jump over, both
// halves are old or both new while the lock is held.
uint32_t word_at(uintptr_t pc) {
    uint16_t halves[2] = {};
    std::memcpy(&halves[0], reinterpret_cast<const void*>(pc), 2);
    if ((halves[0] & 3) == 3) std::memcpy(&halves[1], reinterpret_cast<const void*>(pc + 2), 2);
    return halves[0] | static_cast<uint32_t>(halves[1]) << 16;
}

// Instructions that follow one another are executed in one trap, which takes far longer than they do.
constexpr size_t kMostAtOnce = 32;

void on_illegal_instruction(int, siginfo_t* info, void* opaque) {
    const uint64_t live_vtype = read_vtype();
    __asm__ volatile("fscsr zero");  // round to nearest here; returning restores the program's state
    auto* context = static_cast<ucontext_t*>(opaque);
    auto& pc = context->uc_mcontext.__gregs[REG_PC];
    if (const uintptr_t original = original_of(pc)) pc = original;

    SavedVectorState* saved = saved_vector_state(context);
    const uint64_t vtype = saved ? saved->vtype : live_vtype;
    Instruction at_once[kMostAtOnce];
    size_t count = 0;
    const char* reason = nullptr;
    {
        const Locked locked;
        const uint32_t word = word_at(pc);
        const std::optional<Instruction> first = decode(word);
        if (first) {
            reason = machine.enabled ? why_illegal(*first, machine.profile, vtype) : "VLEN is that of no profile";
            if (!reason && machine.patching && patch(pc, word, *first)) return;
        } else if (is_patched(pc, word)) {
            return;  // another thread was faster
        }
        for (std::optional<Instruction> in = first; in && count < kMostAtOnce; in = decode(word_at(pc + 4 * count))) {
            if (!machine.enabled || why_illegal(*in, machine.profile, vtype)) break;
            at_once[count++] = *in;
        }
    }
    if (count == 0) return deliver(info, context, reason);

    const uint64_t bytes = register_bytes(machine.profile);
    if (saved) {
        for (size_t i = 0; i < count; ++i) run_on(at_once[i], vtype, saved->registers, bytes);
    } else {
        uint8_t registers[kVectorRegisters * register_bytes(Profile::a100)];
        store_live_registers(registers, bytes);
        for (size_t i = 0; i < count; ++i) run_on(at_once[i], vtype, registers, bytes);
        load_live_registers(registers, bytes);
    }
    pc += 4 * count;
}

void print_counts(const char* where) {
    FILE* file = std::strcmp(where, "1") == 0 ? stderr : std::fopen(where, "we");
    if (!file) return;
    for (int i = 0; i < kInstructions; ++i) {
        if (const unsigned long long count = counts[i]) std::fprintf(file, "%s\t%llu\n", name_of(i), count);
    }
    if (file != stderr) std::fclose(file);
}

__attribute__((constructor)) void start() {
    const uint64_t bytes = read_register_bytes();
    const char* name = std::getenv("NYBBLE_IME_PROFILE");
    for (const Profile profile : {Profile::a60, Profile::a100}) {
        const bool asked = !name || std::strcmp(name, profile == Profile::a60 ? "A60" : "A100") == 0;
        if (!asked || register_bytes(profile) != bytes) continue;
        machine.profile = profile;
        machine.enabled = true;
    }
    if (!machine.enabled) {
        std::fprintf(stderr,
                     "nybble_ime: VLEN is %lu and NYBBLE_IME_PROFILE is %s; A60 needs 256 and A100 needs 1024. "
                     "IME instructions stay illegal.\n",
                     bytes * 8, name ? name : "not set");
    }
    machine.bf16 = set_in_environment("NYBBLE_IME_BF16");
    const char* patching = std::getenv("NYBBLE_IME_PATCH");
    machine.patching = !patching || set_in_environment("NYBBLE_IME_PATCH");
    real_sigaction(SIGILL, nullptr, &program_action);
    struct sigaction action = {};
    action.sa_sigaction = on_illegal_instruction;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigfillset(&action.sa_mask);
    real_sigaction(SIGILL, &action, nullptr);
}

__attribute__((destructor)) void finish() {
    if (set_in_environment("NYBBLE_IME_COUNTS")) print_counts(std::getenv("NYBBLE_IME_COUNTS"));
}

}  // namespace

bool run(const Instruction& in, uint64_t vtype, const Operands& operands) {
    if (why_illegal(in, machine.profile, vtype)) return false;
    execute(in, machine.profile, 8u << ((vtype >> 3) & 7), machine.bf16, operands);
    counts[in.index].fetch_add(1, std::memory_order_relaxed);
    return true;
}

}  // namespace nybble::ime

#define NYBBLE_IME_PUBLIC extern "C" __attribute__((visibility("default")))

// The program's own SIGILL handler is called for what stays illegal; the emulator's stays in place.
NYBBLE_IME_PUBLIC int sigaction(int signal_number, const struct sigaction* action, struct sigaction* before) {
    using namespace nybble::ime;
    if (signal_number != SIGILL) return real_sigaction(signal_number, action, before);
    const struct sigaction previous = program_action;
    if (action) program_action = *action;
    if (before) *before = previous;
    return 0;
}

NYBBLE_IME_PUBLIC sighandler_t signal(int signal_number, sighandler_t handler) {
    struct sigaction action = {}, before = {};
    action.sa_handler = handler;
    action.sa_flags = SA_RESTART;
    return sigaction(signal_number, &action, &before) == 0 ? before.sa_handler : SIG_ERR;
}

NYBBLE_IME_PUBLIC unsigned long long nybble_ime_count(const char* name) {
    using namespace nybble::ime;
    unsigned long long sum = 0;
    for (int i = 0; i < kInstructions; ++i) {
        if (!name || std::strcmp(name, name_of(i)) == 0) sum += counts[i];
    }
    return sum;
}

NYBBLE_IME_PUBLIC void nybble_ime_reset(void) {
    for (auto& count : nybble::ime::counts) count = 0;
}
