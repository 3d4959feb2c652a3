// The vector registers of the code a signal interrupted.
//
// Linux saves them in the signal frame and restores them from it. QEMU's user mode does neither: there they are still
// in the registers, where this file reads and writes them. The handler must therefore use no vector instruction
// itself; this file and all it is linked with are compiled without them.
#pragma once

#include <cstdint>
#include <cstring>
#include <ucontext.h>

namespace nybble::ime {

constexpr unsigned kVectorRegisters = 32;

inline uint64_t read_vtype() {
    uint64_t vtype;
    __asm__ volatile(".option push\n.option arch, +v\ncsrr %0, vtype\n.option pop" : "=r"(vtype));
    return vtype;
}

inline uint64_t read_register_bytes() {
    uint64_t bytes;
    __asm__ volatile(".option push\n.option arch, +v\ncsrr %0, vlenb\n.option pop" : "=r"(bytes));
    return bytes;
}

// As the kernel lays it down (arch/riscv/include/uapi/asm/ptrace.h).
struct SavedVectorState {
    uint64_t vstart, vl, vtype, vcsr, vlenb;
    uint8_t* registers;
};

// No frame reaches further: what lies there belongs to the interrupted code, or to nobody. A frame is pushed below the
// stack pointer, or below the end of the alternate stack where that was not in use yet.
inline uintptr_t end_of_frame(const ucontext_t* context) {
    const auto frame = reinterpret_cast<uintptr_t>(context);
    const uintptr_t stack_pointer = context->uc_mcontext.__gregs[REG_SP];
    const auto alternate = reinterpret_cast<uintptr_t>(context->uc_stack.ss_sp);
    const size_t size = context->uc_stack.ss_size;
    const bool is_new_there = frame - alternate < size && stack_pointer - alternate > size;
    return is_new_there ? alternate + size : stack_pointer;
}

// Null where the frame holds none. Extensions follow the floating-point state, each with a header of its magic number
// and its size; a zero magic ends them. The first header takes that state's last 8 bytes. QEMU's frame is over before.
inline SavedVectorState* saved_vector_state(ucontext_t* context) {
    constexpr uint32_t kVector = 0x53465457;
    const uintptr_t end = end_of_frame(context);
    auto header = reinterpret_cast<uintptr_t>(&context->uc_mcontext.__fpregs) + 520;
    while (header + 8 <= end) {
        uint32_t words[2];
        std::memcpy(words, reinterpret_cast<const void*>(header), sizeof words);
        const auto [magic, size] = words;
        if (magic == kVector) return reinterpret_cast<SavedVectorState*>(header + 8);
        if (magic == 0 || size < 8) return nullptr;
        header += size;
    }
    return nullptr;
}

// All 32, `bytes` each, from v0 on.
inline void store_live_registers(uint8_t* to, uint64_t bytes) {
    __asm__ volatile(
        ".option push\n.option arch, +v\n"
        "vs8r.v v0, (%0)\n"
        "add %0, %0, %1\nvs8r.v v8, (%0)\n"
        "add %0, %0, %1\nvs8r.v v16, (%0)\n"
        "add %0, %0, %1\nvs8r.v v24, (%0)\n"
        ".option pop"
        : "+&r"(to)
        : "r"(8 * bytes)
        : "memory");
}

inline void load_live_registers(const uint8_t* from, uint64_t bytes) {
    __asm__ volatile(
        ".option push\n.option arch, +v\n"
        "vl8re8.v v0, (%0)\n"
        "add %0, %0, %1\nvl8re8.v v8, (%0)\n"
        "add %0, %0, %1\nvl8re8.v v16, (%0)\n"
        "add %0, %0, %1\nvl8re8.v v24, (%0)\n"
        ".option pop"
        : "+&r"(from)
        : "r"(8 * bytes)
        : "memory");
}

}  // namespace nybble::ime
