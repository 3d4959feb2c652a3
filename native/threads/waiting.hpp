// Waiting for another thread: spin briefly, then sleep, so that an idle engine uses no CPU and a neighbour process that
// takes a core away costs its share and not a collapse.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace nybble {

// Longer than a thread is late when all have a CPU, and shorter than a scheduler slice.
inline constexpr std::chrono::microseconds kSpinTime{100};
// Longer than a caller takes to choose a token and show it: waking a thread that sleeps takes as long.
inline constexpr std::chrono::microseconds kSpinTimeBetweenSteps{500};

// Tells the CPU that this thread spins.
inline void pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#else
    asm volatile("" ::: "memory");
#endif
}

// Return once `value`, which counts up, has come to `wanted`; whoever changes it calls notify_all() on it.
// `meanwhile()` is called again and again before anything else until it returns false.
template <typename Meanwhile>
void wait_until_reached(const std::atomic<uint32_t>& value, uint32_t wanted, std::chrono::microseconds spin_time,
                        const Meanwhile& meanwhile) {
    // A pause takes 10 to 50 ns, depending on the CPU: reading the clock takes as long as several.
    constexpr int kSpinsBetweenClocks = 32;
    uint32_t seen = 0;
    const auto reached = [&] {
        seen = value.load(std::memory_order_acquire);
        return static_cast<int32_t>(seen - wanted) >= 0;  // counters wrap
    };
    do {
        if (reached()) return;
    } while (meanwhile());
    const auto end = std::chrono::steady_clock::now() + spin_time;
    do {
        for (int spin = 0; spin < kSpinsBetweenClocks; ++spin) {
            if (reached()) return;
            pause();
        }
    } while (std::chrono::steady_clock::now() < end);
    while (!reached()) value.wait(seen, std::memory_order_acquire);
}

inline void wait_until_reached(const std::atomic<uint32_t>& value, uint32_t wanted,
                               std::chrono::microseconds spin_time) {
    wait_until_reached(value, wanted, spin_time, [] { return false; });
}

}  // namespace nybble
