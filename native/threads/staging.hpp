// Memory beside the cores of a pool's threads, where each puts what it multiplies next. Two threads share a matrix unit
// and the way to memory: while one multiplies, the other copies.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cpu/tightly_coupled_memory.hpp"
#include "threads/waiting.hpp"

namespace nybble {

class ThreadPool;

// What one thread at a time may do. The others spin briefly, then sleep.
class Turns {
  public:
    template <typename Function>
    void take(const Function& function) {
        while (is_taken_.exchange(1, std::memory_order_acquire) != 0) {
            const auto end = std::chrono::steady_clock::now() + kSpinTime;
            while (is_taken_.load(std::memory_order_relaxed) != 0 && std::chrono::steady_clock::now() < end) pause();
            is_taken_.wait(1, std::memory_order_relaxed);
        }
        function();
        is_taken_.store(0, std::memory_order_release);
        is_taken_.notify_one();
    }

  private:
    std::atomic<uint32_t> is_taken_{0};
};

class Staging {
  public:
    struct Pair {
        alignas(64) Turns copying;
        alignas(64) Turns multiplying;
    };

    // A block for each thread of the pool, whose two of a pair have 2i and 2i + 1. Throws std::runtime_error: a thread
    // has no partner, or a block is not to be had.
    Staging(ThreadPool& threads, const std::string& library, const std::vector<size_t>& blocks);
    ~Staging();
    Staging(const Staging&) = delete;

    size_t block_bytes() const { return memory_.block_bytes(); }
    uint8_t* block_of(size_t thread) const { return addresses_[thread]; }
    Pair& pair_of(size_t thread) const { return pairs_[blocks_[thread] / 2]; }

  private:
    void release();

    TightlyCoupledMemory memory_;
    std::vector<size_t> blocks_;
    std::vector<uint8_t*> addresses_;  // null: not acquired
    std::unique_ptr<Pair[]> pairs_;
};

}  // namespace nybble
