// Runs instruction words and shows what became of the registers: for tests of the IME emulator.
//
// words INPUT OUTPUT: INPUT is records of a word (4 bytes), the position of the code in its page modulo 4 (4 bytes; 0
// or 2), vtype (8 bytes) and all vector registers. Each word runs twice in the same place. OUTPUT is, for each run, 8
// bytes (0: it ran; 1: SIGILL in its place) and all vector registers. words threads N: N threads run the same words for
// the first time at the same time; exits with 0 if all sums agree. words frame: calls the handler of SIGILL with a
// signal frame as Linux makes it. words stacks: runs words on stacks that end soon, at an unmapped page, and hold what
// looks like parts of signal frames; prints how many. words rows: runs rows of words without anything between them.
// words surrounded TIMES: runs a word that often in code near which there is no room for other code.

#include <atomic>
#include <csetjmp>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>
#include <vector>

namespace {

uint64_t register_bytes() {
    uint64_t bytes;
    __asm__("csrr %0, vlenb" : "=r"(bytes));
    return bytes;
}

struct Call {
    void* code;
    uint8_t* registers;
    uint64_t vtype;
    uint64_t integers[14];  // t0 to t5, a0 to a7 around the word; ra and sp are implied by coming back
    uint64_t floats[20];
    uint64_t fcsr;
};

// Loads everything from the call, runs its code, stores everything back.
extern "C" __attribute__((naked)) void run(Call*) {
    __asm__ volatile(R"(
        addi sp, sp, -32
        sd ra, 0(sp)
        sd s0, 8(sp)
        sd s1, 16(sp)
        mv s0, a0
        ld s1, 0(s0)
        csrr t1, vlenb
        slli t1, t1, 3
        ld t0, 8(s0)
        vl8re8.v v0, (t0)
        add t0, t0, t1
        vl8re8.v v8, (t0)
        add t0, t0, t1
        vl8re8.v v16, (t0)
        add t0, t0, t1
        vl8re8.v v24, (t0)
        ld t0, 16(s0)
        vsetvl zero, zero, t0
        ld t0, 296(s0)
        fscsr t0
        ld t0, 24(s0)
        ld t1, 32(s0)
        ld t2, 40(s0)
        ld t3, 48(s0)
        ld t4, 56(s0)
        ld t5, 64(s0)
        ld a0, 72(s0)
        ld a1, 80(s0)
        ld a2, 88(s0)
        ld a3, 96(s0)
        ld a4, 104(s0)
        ld a5, 112(s0)
        ld a6, 120(s0)
        ld a7, 128(s0)
        .irp r, 0,1,2,3,4,5,6,7,8,9,10,11
        fld ft\r, 136+8*\r(s0)
        .endr
        .irp r, 0,1,2,3,4,5,6,7
        fld fa\r, 232+8*\r(s0)
        .endr
        jalr s1
        .irp r, 0,1,2,3,4,5,6,7,8,9,10,11
        fsd ft\r, 136+8*\r(s0)
        .endr
        .irp r, 0,1,2,3,4,5,6,7
        fsd fa\r, 232+8*\r(s0)
        .endr
        sd t0, 24(s0)
        sd t1, 32(s0)
        sd t2, 40(s0)
        sd t3, 48(s0)
        sd t4, 56(s0)
        sd t5, 64(s0)
        sd a0, 72(s0)
        sd a1, 80(s0)
        sd a2, 88(s0)
        sd a3, 96(s0)
        sd a4, 104(s0)
        sd a5, 112(s0)
        sd a6, 120(s0)
        sd a7, 128(s0)
        frcsr t0
        sd t0, 296(s0)
        csrr t1, vlenb
        slli t1, t1, 3
        ld t0, 8(s0)
        vs8r.v v0, (t0)
        add t0, t0, t1
        vs8r.v v8, (t0)
        add t0, t0, t1
        vs8r.v v16, (t0)
        add t0, t0, t1
        vs8r.v v24, (t0)
        ld ra, 0(sp)
        ld s0, 8(sp)
        ld s1, 16(sp)
        addi sp, sp, 32
        ret)");
}

sigjmp_buf after_illegal;
void* illegal_at;

void on_illegal(int, siginfo_t* info, void* context) {
    illegal_at = info->si_addr;
    if (static_cast<ucontext_t*>(context)->uc_mcontext.__gregs[REG_PC] != reinterpret_cast<uintptr_t>(illegal_at))
        abort();
    siglongjmp(after_illegal, 1);
}

uint8_t* code_page(size_t bytes) {
    void* page = mmap(nullptr, bytes, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED) abort();
    return static_cast<uint8_t*>(page);
}

void write_function(uint8_t* at, uint32_t word) {
    constexpr uint16_t kReturn = 0x8082;
    std::memcpy(at, &word, 4);
    std::memcpy(at + 4, &kReturn, 2);
    __asm__ volatile("fence.i" ::: "memory");
}

int run_words(const char* input, const char* output) {
    FILE* in = std::fopen(input, "rb");
    FILE* out = std::fopen(output, "wb");
    if (!in || !out) return 2;
    struct sigaction action = {};
    action.sa_sigaction = on_illegal;
    action.sa_flags = SA_SIGINFO;
    sigaction(SIGILL, &action, nullptr);
    const size_t all = 32 * register_bytes();
    constexpr size_t kMost = 1 << 16;
    uint8_t* page = code_page(kMost);
    std::vector<uint8_t> given(all), registers(all);
    struct {
        uint32_t word, offset;
        uint64_t vtype;
    } record;
    for (size_t at = 0; std::fread(&record, sizeof record, 1, in) == 1; at += 16) {
        if (std::fread(given.data(), 1, all, in) != all || at + 16 > kMost) return 2;
        uint8_t* code = page + at + record.offset;
        write_function(code, record.word);
        for (int turn = 0; turn < 2; ++turn) {
            registers = given;
            Call call = {code, registers.data(), record.vtype, {}, {}, 0x21};
            for (uint64_t& value : call.integers) value = 0x0123456789abcdef * (&value - call.integers + 1);
            for (uint64_t& value : call.floats) value = 0xfedcba987654321 * (&value - call.floats + 1);
            const Call before = call;
            uint64_t illegal = 0;
            if (sigsetjmp(after_illegal, 1) == 0) {
                run(&call);
                if (std::memcmp(&call, &before, sizeof call) != 0) {
                    std::fprintf(stderr, "word %#x changed other registers\n", record.word);
                    return 1;
                }
            } else {
                illegal = 1;
                if (illegal_at != code) return 3;
                registers = given;
            }
            std::fwrite(&illegal, sizeof illegal, 1, out);
            std::fwrite(registers.data(), 1, all, out);
        }
    }
    return std::fclose(out);
}

constexpr int kSites = 64;
uint8_t* sites;
pthread_barrier_t together;

void* run_all(void*) {
    std::vector<uint8_t> registers(32 * register_bytes(), 1);
    for (int i = 0; i < kSites; ++i) {
        pthread_barrier_wait(&together);
        Call call = {sites + 18 * i, registers.data(), 0, {}, {}, 0};
        run(&call);
    }
    int32_t sum;
    std::memcpy(&sum, registers.data() + 16 * register_bytes(), 4);
    const int32_t start = 0x01010101, depth = register_bytes() == 32 ? 8 : 16;
    return reinterpret_cast<void*>(static_cast<intptr_t>(sum != start + kSites * depth));
}

int run_threads(int count) {
    sites = code_page(1 << 12);
    for (int i = 0; i < kSites; ++i) write_function(sites + 18 * i, 0xE280382B);  // vmadot v16, v0, v8
    pthread_barrier_init(&together, nullptr, static_cast<unsigned>(count));
    std::vector<pthread_t> threads(static_cast<size_t>(count));
    for (auto& thread : threads) pthread_create(&thread, nullptr, run_all, nullptr);
    intptr_t wrong = 0;
    for (auto& thread : threads) {
        void* result;
        pthread_join(thread, &result);
        wrong += reinterpret_cast<intptr_t>(result);
    }
    return wrong != 0;
}

int call_handler_with_frame() {
    struct {
        void (*handler)(int, siginfo_t*, void*);
        unsigned long flags;
        unsigned long mask;
    } action;
    if (syscall(SYS_rt_sigaction, SIGILL, nullptr, &action, 8) != 0) return 2;
    const size_t bytes = register_bytes();
    std::vector<uint8_t> registers(32 * bytes, 2);
    uint32_t word = 0xE280382B;
    const auto start = reinterpret_cast<uintptr_t>(&word);

    std::vector<uint64_t> memory((sizeof(ucontext_t) + 4096) / 8);
    auto* context = reinterpret_cast<ucontext_t*>(memory.data());
    context->uc_mcontext.__gregs[REG_PC] = start;
    context->uc_mcontext.__gregs[REG_SP] = reinterpret_cast<uintptr_t>(memory.data() + memory.size());
    auto* header = reinterpret_cast<uint8_t*>(&context->uc_mcontext.__fpregs) + 520;
    // An extension that is not vectors comes first.
    const uint32_t other[4] = {0x12345678, 16, 0, 0};
    std::memcpy(header, other, sizeof other);
    struct {
        uint32_t magic, size;
        uint64_t vstart, vl, vtype, vcsr, vlenb;
        uint8_t* registers;
    } vectors = {0x53465457, 56, 0, bytes, 0, 0, bytes, registers.data()};
    std::memcpy(header + 16, &vectors, sizeof vectors);
    siginfo_t info = {};
    action.handler(SIGILL, &info, context);
    int32_t sum;
    std::memcpy(&sum, registers.data() + 16 * bytes, 4);
    const int32_t depth = bytes == 32 ? 8 : 16;
    if (sum != 0x02020202 + 4 * depth || context->uc_mcontext.__gregs[REG_PC] != start + 4) return 1;
    return registers[0] != 2;
}

// Calls code, whose word wants e8 and m1, with that stack pointer.
extern "C" __attribute__((naked)) void run_on_stack(void*, void*) {
    __asm__ volatile(R"(
        addi sp, sp, -16
        sd ra, 0(sp)
        sd s0, 8(sp)
        mv s0, sp
        mv sp, a0
        vsetvli t0, zero, e8, m1, ta, ma
        jalr a1
        mv sp, s0
        ld ra, 0(sp)
        ld s0, 8(sp)
        addi sp, sp, 16
        ret)");
}

// Memory that ends at an unmapped page.
uint8_t* stack_end(size_t bytes) {
    const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    uint8_t* memory = code_page(bytes + page);
    if (mprotect(memory + bytes, page, PROT_NONE) != 0) abort();
    return memory + bytes;
}

// Where QEMU's frame is over, a frame of Linux goes on with headers: a magic number, that of vectors or another, and a
// size. Whatever the program keeps there is none.
int run_on_stacks() {
    constexpr size_t kBytes = 1 << 16, kAll = 1 << 13;
    uint8_t* const own = stack_end(kBytes);
    uint8_t* const alternate = stack_end(kBytes);
    uint8_t* const code = code_page(kAll);
    size_t at = 0;
    const auto run_new_word = [&](void* stack) {
        if (at + 8 > kAll) abort();
        write_function(code + at, 0xE280382B);
        run_on_stack(stack, code + at);
        at += 8;
    };
    const stack_t none = {nullptr, SS_DISABLE, 0}, some = {alternate - kBytes, 0, kBytes};
    for (const uint32_t magic : {1u, 0x53465457u}) {
        for (const uint32_t size : {8u, 16u, 0x7fb6u, 0xffffu, 0xffffffffu}) {
            for (uint8_t* const end : {own, alternate}) {
                for (uint32_t* word = reinterpret_cast<uint32_t*>(end - kBytes); word < static_cast<void*>(end);) {
                    *word++ = magic;
                    *word++ = size;
                }
            }
            for (const size_t left : {0, 16, 240, 256, 512, 4096}) {
                sigaltstack(&none, nullptr);
                run_new_word(own - left);
                sigaltstack(&some, nullptr);
                run_new_word(own - left);
                run_new_word(alternate - left);
            }
        }
    }
    std::printf("%zu\n", at / 8);
    return 0;
}

// Rows of legal words, and of some with one that is not: what stands before it ran, and nothing else did.
int run_rows() {
    struct sigaction action = {};
    action.sa_sigaction = on_illegal;
    action.sa_flags = SA_SIGINFO;
    sigaction(SIGILL, &action, nullptr);
    constexpr uint32_t kLegal = 0xE280382B, kOddDestination = 0xE28038AB, kOtherCode = 0x00000013;
    constexpr size_t kLongest = 70;
    uint8_t* const code = code_page(kLongest * kLongest * 16);
    const int32_t start = 0x01010101, depth = register_bytes() == 32 ? 8 : 16;
    size_t at = 0;
    for (size_t length = 1; length < kLongest; length += 3, at += 2) {
        for (const uint32_t last : {kLegal, kOddDestination, kOtherCode}) {
            uint8_t* const begin = code + at;
            for (size_t i = 0; i < length; ++i, at += 4) std::memcpy(code + at, i + 1 < length ? &kLegal : &last, 4);
            write_function(code + at, kLegal);
            at += 8;
            for (int turn = 0; turn < 2; ++turn) {
                std::vector<uint8_t> registers(32 * register_bytes(), 1);
                Call call = {begin, registers.data(), 0, {}, {}, 0};
                const bool is_whole = sigsetjmp(after_illegal, 1) == 0;
                if (is_whole) {
                    run(&call);
                    int32_t sum;
                    std::memcpy(&sum, registers.data() + 16 * register_bytes(), 4);
                    const size_t words = length + (last == kLegal ? 1 : 0);
                    if (sum != start + static_cast<int32_t>(words) * depth) return 1;
                }
                const bool stops = last == kOddDestination;
                if (is_whole == stops || (stops && illegal_at != begin + 4 * (length - 1))) return 1;
            }
        }
    }
    return 0;
}

int run_surrounded(int times) {
    constexpr size_t kReach = 1 << 20, kBytes = 1 << 12;
    void* all = mmap(nullptr, 2 * kReach + kBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (all == MAP_FAILED) return 2;
    uint8_t* const code = static_cast<uint8_t*>(all) + kReach;
    if (mprotect(code, kBytes, PROT_READ | PROT_WRITE | PROT_EXEC) != 0) return 2;
    write_function(code, 0xE280382B);
    std::vector<uint8_t> registers(32 * register_bytes(), 1);
    for (int i = 0; i < times; ++i) {
        Call call = {code, registers.data(), 0, {}, {}, 0};
        run(&call);
    }
    int32_t sum;
    std::memcpy(&sum, registers.data() + 16 * register_bytes(), 4);
    return sum != 0x01010101 + times * (register_bytes() == 32 ? 8 : 16);
}

}  // namespace

int main(int count, char** arguments) {
    if (count == 4 && std::strcmp(arguments[1], "words") == 0) return run_words(arguments[2], arguments[3]);
    if (count == 3 && std::strcmp(arguments[1], "threads") == 0) return run_threads(std::atoi(arguments[2]));
    if (count == 2 && std::strcmp(arguments[1], "frame") == 0) return call_handler_with_frame();
    if (count == 2 && std::strcmp(arguments[1], "stacks") == 0) return run_on_stacks();
    if (count == 2 && std::strcmp(arguments[1], "rows") == 0) return run_rows();
    if (count == 3 && std::strcmp(arguments[1], "surrounded") == 0) return run_surrounded(std::atoi(arguments[2]));
    return 2;
}
