#include "threads/waiting.hpp"

namespace nybble {
namespace {

// About 20-60 µs: longer than a wait takes when nobody is late, shorter than a scheduler slice.
constexpr int kSpins = 4000;

inline void pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#else
    asm volatile("" ::: "memory");
#endif
}

}  // namespace

void wait_for_change(const std::atomic<uint32_t>& value, uint32_t old) {
    for (int spin = 0; spin < kSpins; ++spin) {
        if (value.load(std::memory_order_acquire) != old) return;
        pause();
    }
    while (value.load(std::memory_order_acquire) == old) value.wait(old, std::memory_order_acquire);
}

}  // namespace nybble
