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

// Null where the frame holds none. Extensions follow the floating-point state, each with a header of its magic number
// and its size; a zero magic ends them. The first header takes that state's last 8 bytes.
inline SavedVectorState* saved_vector_state(ucontext_t* context) {
    constexpr uint32_t kVector = 0x53465457;
    constexpr size_t kMostBytes = 1 << 16;
    auto* header = reinterpret_cast<uint8_t*>(&context->uc_mcontext.__fpregs) + 520;
    for (size_t offset = 0; offset < kMostBytes;) {
        uint32_t magic, size;
        std::memcpy(&magic, header + offset, 4);
        std::memcpy(&size, header + offset + 4, 4);
        if (magic == kVector) return reinterpret_cast<SavedVectorState*>(header + offset + 8);
        if (magic == 0 || size < 8) return nullptr;
        offset += size;
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
