#include "threads/thread_pool.hpp"

#include <csignal>
#include <pthread.h>

namespace nybble {
namespace {

// About 20-60 µs: longer than a barrier takes when nobody is late, shorter than a scheduler slice.
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

// Wait until `value` is no longer `old`.
void wait_for_change(const std::atomic<uint32_t>& value, uint32_t old) {
    for (int spin = 0; spin < kSpins; ++spin) {
        if (value.load(std::memory_order_acquire) != old) return;
        pause();
    }
    while (value.load(std::memory_order_acquire) == old) value.wait(old, std::memory_order_acquire);
}

}  // namespace

void Barrier::wait() {
    if (threads_ == 1) return;
    const uint32_t generation = generation_.load(std::memory_order_acquire);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == threads_) {
        arrived_.store(0, std::memory_order_relaxed);
        generation_.fetch_add(1, std::memory_order_release);
        generation_.notify_all();
    } else {
        wait_for_change(generation_, generation);
    }
}

ThreadPool::ThreadPool(size_t threads) : barrier_(threads) {
    // Signals belong to the caller's thread: Ctrl-C must reach Python, not a worker.
    sigset_t all, previous;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &previous);
    try {
        for (size_t index = 1; index < threads; ++index) workers_.emplace_back(&ThreadPool::work, this, index);
    } catch (...) {
        pthread_sigmask(SIG_SETMASK, &previous, nullptr);
        stop();
        throw;
    }
    pthread_sigmask(SIG_SETMASK, &previous, nullptr);
}

ThreadPool::~ThreadPool() { stop(); }

void ThreadPool::stop() {
    stopping_.store(true, std::memory_order_release);
    round_.fetch_add(1, std::memory_order_release);
    round_.notify_all();
    for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::run(const std::function<void(size_t)>& function) {
    if (workers_.empty()) {
        function(0);
        return;
    }
    function_ = &function;
    running_.store(static_cast<uint32_t>(workers_.size()), std::memory_order_relaxed);
    round_.fetch_add(1, std::memory_order_release);
    round_.notify_all();
    function(0);
    for (uint32_t left; (left = running_.load(std::memory_order_acquire)) != 0;) wait_for_change(running_, left);
}

void ThreadPool::work(size_t index) {
    uint32_t round = 0;
    for (;;) {
        wait_for_change(round_, round);
        ++round;
        if (stopping_.load(std::memory_order_acquire)) return;
        (*function_)(index);
        if (running_.fetch_sub(1, std::memory_order_acq_rel) == 1) running_.notify_all();
    }
}

}  // namespace nybble
