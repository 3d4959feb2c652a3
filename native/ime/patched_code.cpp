#include "ime/patched_code.hpp"

#include <atomic>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "ime/machine.hpp"
#include "ime/vector_state.hpp"

namespace nybble::ime {

namespace {

// One patched instruction. The generated code passes it to enter_from_code.
struct Site {
    uintptr_t pc;
    uint32_t jump;      // what now stands there
    uintptr_t illegal;  // where its generated code gives up
    Instruction instruction;
    const Site* previous;
};

std::atomic<const Site*> sites = nullptr;

// Integer registers by number.
enum : unsigned { kReturn = 1, kStack = 2, kT0 = 5, kT1 = 6 };

constexpr unsigned kSaved = 32;  // bytes of the frame for t0, t1 and ra; vector registers follow
constexpr size_t kPoolBytes = 1 << 14, kMostStubBytes = 512, kReach = (1 << 20) - kPoolBytes;

// The registers lie in the frame in this order: the group of vd, that of vs1, vs2, and the parameters.
bool run_site(const Site* site, uint8_t* registers, uint64_t vtype) {
    const Instruction& in = site->instruction;
    const size_t bytes = register_bytes(machine.profile);
    uint8_t* a = registers + in.vd_registers * bytes;
    uint8_t* b = a + in.vs1_registers * bytes;
    return run(in, vtype, {a, b, b + bytes, registers});
}

// Called by generated code with t0 = site and t1 = the vector registers' bytes; leaves in t0 whether it was legal and
// keeps every other register but t1 and ra, which the generated code saves.
extern "C" __attribute__((naked, noinline, used)) void nybble_ime_enter_from_code() {
    __asm__ volatile(R"(
        addi sp, sp, -288
        sd t2, 0(sp)
        sd t3, 8(sp)
        sd t4, 16(sp)
        sd t5, 24(sp)
        sd t6, 32(sp)
        sd a0, 40(sp)
        sd a1, 48(sp)
        sd a2, 56(sp)
        sd a3, 64(sp)
        sd a4, 72(sp)
        sd a5, 80(sp)
        sd a6, 88(sp)
        sd a7, 96(sp)
        sd ra, 104(sp)
        fsd ft0, 112(sp)
        fsd ft1, 120(sp)
        fsd ft2, 128(sp)
        fsd ft3, 136(sp)
        fsd ft4, 144(sp)
        fsd ft5, 152(sp)
        fsd ft6, 160(sp)
        fsd ft7, 168(sp)
        fsd ft8, 176(sp)
        fsd ft9, 184(sp)
        fsd ft10, 192(sp)
        fsd ft11, 200(sp)
        fsd fa0, 208(sp)
        fsd fa1, 216(sp)
        fsd fa2, 224(sp)
        fsd fa3, 232(sp)
        fsd fa4, 240(sp)
        fsd fa5, 248(sp)
        fsd fa6, 256(sp)
        fsd fa7, 264(sp)
        frcsr a3
        sd a3, 272(sp)
        fscsr zero
        mv a0, t0
        mv a1, t1
        .option push
        .option arch, +v
        csrr a2, vtype
        .option pop
        call %0
        mv t0, a0
        ld a3, 272(sp)
        fscsr a3
        ld t2, 0(sp)
        ld t3, 8(sp)
        ld t4, 16(sp)
        ld t5, 24(sp)
        ld t6, 32(sp)
        ld a0, 40(sp)
        ld a1, 48(sp)
        ld a2, 56(sp)
        ld a3, 64(sp)
        ld a4, 72(sp)
        ld a5, 80(sp)
        ld a6, 88(sp)
        ld a7, 96(sp)
        ld ra, 104(sp)
        fld ft0, 112(sp)
        fld ft1, 120(sp)
        fld ft2, 128(sp)
        fld ft3, 136(sp)
        fld ft4, 144(sp)
        fld ft5, 152(sp)
        fld ft6, 160(sp)
        fld ft7, 168(sp)
        fld ft8, 176(sp)
        fld ft9, 184(sp)
        fld ft10, 192(sp)
        fld ft11, 200(sp)
        fld fa0, 208(sp)
        fld fa1, 216(sp)
        fld fa2, 224(sp)
        fld fa3, 232(sp)
        fld fa4, 240(sp)
        fld fa5, 248(sp)
        fld fa6, 256(sp)
        fld fa7, 264(sp)
        addi sp, sp, 288
        ret)" ::"i"(run_site));
}

// Writes instructions one after the other.
class Assembler {
  public:
    explicit Assembler(uint32_t* at) : at_(at) {}

    uint32_t* here() const { return at_; }
    void word(uint32_t value) { *at_++ = value; }
    void add_immediate(unsigned rd, unsigned rs, int value) { word(0x13 | rd << 7 | rs << 15 | low12(value) << 20); }
    void load(unsigned rd, unsigned base, int offset) { word(0x3003 | rd << 7 | base << 15 | low12(offset) << 20); }
    void store(unsigned rs, unsigned base, int offset) {
        const uint32_t o = low12(offset);
        word(0x3023 | (o & 31) << 7 | base << 15 | rs << 20 | (o >> 5) << 25);
    }
    void store_vector(unsigned v, unsigned base) { word(0x02800027 | v << 7 | base << 15); }  // vs1r.v
    void load_vector(unsigned v, unsigned base) { word(0x02800007 | v << 7 | base << 15); }   // vl1re8.v
    void call(unsigned rs) { word(0x67 | kReturn << 7 | rs << 15); }
    // rd = the 8 bytes at `literal`.
    void load_literal(unsigned rd, const uint64_t* literal) {
        const auto offset = static_cast<int32_t>(reinterpret_cast<intptr_t>(literal) - reinterpret_cast<intptr_t>(at_));
        const uint32_t upper = (static_cast<uint32_t>(offset) + 0x800u) & 0xfffff000u;
        word(0x17 | rd << 7 | upper);  // auipc
        load(rd, rd, offset - static_cast<int32_t>(upper));
    }
    void jump(uintptr_t target) { word(jump_from(reinterpret_cast<uintptr_t>(at_), target)); }

    static uint32_t jump_from(uintptr_t from, uintptr_t target) {
        const auto o = static_cast<uint32_t>(target - from);
        return 0x6f | (o >> 20 & 1) << 31 | (o >> 1 & 0x3ff) << 21 | (o >> 11 & 1) << 20 | (o >> 12 & 0xff) << 12;
    }

  private:
    static uint32_t low12(int value) { return static_cast<uint32_t>(value) & 0xfff; }

    uint32_t* at_;
};

bool within_reach(uintptr_t a, uintptr_t b) { return (a > b ? a - b : b - a) < kReach; }

// The pool filled at present.
uintptr_t next = 0, end = 0;

// Code that has other mappings all around it, as parts of a large library may, in blocks of kPoolBytes: who looks for
// room there each time takes far longer than a trap.
constexpr size_t kMostSurrounded = 64;
uintptr_t surrounded[kMostSurrounded];
size_t surrounded_count = 0;

// Makes `next` lie within a jump's reach of pc, with room for one site.
bool find_room(uintptr_t pc) {
    if (end - next >= kMostStubBytes && within_reach(next, pc)) return true;
    const uintptr_t block = pc / kPoolBytes;
    for (const uintptr_t known : surrounded) {
        if (known == block) return false;
    }
    for (uintptr_t distance = kPoolBytes; distance < kReach; distance += kPoolBytes) {
        for (const uintptr_t wanted : {pc + distance, pc - distance}) {
            const uintptr_t start = wanted & ~(kPoolBytes - 1);
            void* pool = mmap(reinterpret_cast<void*>(start), kPoolBytes, PROT_READ | PROT_WRITE | PROT_EXEC,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
            if (pool == MAP_FAILED) continue;
            if (reinterpret_cast<uintptr_t>(pool) == start && within_reach(start, pc)) {
                next = start;
                end = start + kPoolBytes;
                return true;
            }
            munmap(pool, kPoolBytes);  // a kernel that does not know MAP_FIXED_NOREPLACE
        }
    }
    surrounded[surrounded_count++ % kMostSurrounded] = block;
    return false;
}

// Every hardware thread of the process sees code written before. Where the system call is missing, as in QEMU's user
// mode, which drops translations of what is written, this thread's own fence will do.
void synchronise_code() {
    constexpr long kFlush = 259;  // __NR_riscv_flush_icache
    if (syscall(kFlush, 0, 0, 0) != 0) __asm__ volatile("fence.i" ::: "memory");
}

// A jump over the four bytes at pc while others may execute them. Where they are not aligned no store of all four is
// sure to be atomic; then the upper half goes first: with the old lower half it still is a word of IME's opcode, which
// traps and is looked at again once the lock is free.
bool write_jump(uintptr_t pc, uint32_t jump) {
    const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
    const uintptr_t first = pc & ~(page - 1), after = ((pc + 3) & ~(page - 1)) + page;
    auto* pages = reinterpret_cast<void*>(first);
    if (mprotect(pages, after - first, PROT_READ | PROT_WRITE | PROT_EXEC) != 0) return false;
    if (pc % 4 == 0) {
        __atomic_store_n(reinterpret_cast<uint32_t*>(pc), jump, __ATOMIC_RELEASE);
    } else {
        __atomic_store_n(reinterpret_cast<uint16_t*>(pc + 2), static_cast<uint16_t>(jump >> 16), __ATOMIC_RELEASE);
        synchronise_code();
        __atomic_store_n(reinterpret_cast<uint16_t*>(pc), static_cast<uint16_t>(jump), __ATOMIC_RELEASE);
    }
    synchronise_code();
    return true;
}

}  // namespace

bool patch(uintptr_t pc, uint32_t word, const Instruction& in) {
    if (!find_room(pc)) return false;
    const int bytes = static_cast<int>(register_bytes(machine.profile));
    uint8_t spilled[6];
    int count = 0;
    for (unsigned i = 0; i < in.vd_registers; ++i) spilled[count++] = static_cast<uint8_t>(in.vd + i);
    for (unsigned i = 0; i < in.vs1_registers; ++i) spilled[count++] = static_cast<uint8_t>(in.vs1 + i);
    spilled[count++] = in.vs2;
    spilled[count++] = in.parameters;
    const int frame = static_cast<int>(kSaved) + count * bytes;

    // What to call and with what, then the code.
    auto* literals = reinterpret_cast<uint64_t*>(next);
    auto* site = reinterpret_cast<Site*>(literals + 2);
    Assembler a(reinterpret_cast<uint32_t*>(site + 1));
    const auto start = reinterpret_cast<uintptr_t>(a.here());
    literals[0] = reinterpret_cast<uint64_t>(&nybble_ime_enter_from_code);
    literals[1] = reinterpret_cast<uint64_t>(site);

    const auto restore = [&] {
        a.load(kT0, kStack, 0);
        a.load(kT1, kStack, 8);
        a.load(kReturn, kStack, 16);
        a.add_immediate(kStack, kStack, frame);
    };
    a.add_immediate(kStack, kStack, -frame);
    a.store(kT0, kStack, 0);
    a.store(kT1, kStack, 8);
    a.store(kReturn, kStack, 16);
    a.add_immediate(kT1, kStack, static_cast<int>(kSaved));
    for (int i = 0; i < count; ++i) {
        a.store_vector(spilled[i], kT1);
        a.add_immediate(kT1, kT1, bytes);
    }
    a.add_immediate(kT1, kStack, static_cast<int>(kSaved));
    a.load_literal(kReturn, literals);
    a.load_literal(kT0, literals + 1);
    a.call(kReturn);
    uint32_t* const branch = a.here();
    a.word(0);
    a.add_immediate(kT1, kStack, static_cast<int>(kSaved));
    for (unsigned i = 0; i < in.vd_registers; ++i) {
        a.load_vector(in.vd + i, kT1);
        a.add_immediate(kT1, kT1, bytes);
    }
    restore();
    a.jump(pc + 4);
    // Illegal: traps as the instruction would in its place, with the same registers. The handler knows this address.
    const auto skipped = static_cast<uint32_t>((a.here() - branch) * 4);
    *branch = 0x63 | kT0 << 15 | (skipped & 0x1e) << 7 | (skipped >> 5 & 0x3f) << 25;  // beq t0, zero, here
    restore();
    const auto illegal = reinterpret_cast<uintptr_t>(a.here());
    a.word(word);

    *site = {pc, Assembler::jump_from(pc, start), illegal, in, sites.load(std::memory_order_relaxed)};
    next = (reinterpret_cast<uintptr_t>(a.here()) + 15) & ~uintptr_t{15};
    sites.store(site, std::memory_order_release);
    synchronise_code();
    return write_jump(pc, site->jump);
}

bool is_patched(uintptr_t pc, uint32_t word) {
    for (const Site* site = sites.load(std::memory_order_acquire); site; site = site->previous) {
        if (site->pc == pc && site->jump == word) return true;
    }
    return false;
}

uintptr_t original_of(uintptr_t pc) {
    for (const Site* site = sites.load(std::memory_order_acquire); site; site = site->previous) {
        if (site->illegal == pc) return site->pc;
    }
    return 0;
}

}  // namespace nybble::ime
