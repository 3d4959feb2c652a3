#include "threads/thread_pool.hpp"

#include <csignal>
#include <pthread.h>

#include "threads/waiting.hpp"

namespace nybble {

ThreadPool::ThreadPool(size_t threads) {
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
    const auto expected = returned_.load(std::memory_order_relaxed) + static_cast<uint32_t>(workers_.size());
    round_.fetch_add(1, std::memory_order_release);
    round_.notify_all();
    function(0);
    wait_until_reached(returned_, expected, kSpinTime);
}

void ThreadPool::work(size_t index) {
    uint32_t round = 0;
    for (;;) {
        wait_until_reached(round_, ++round, kSpinTimeBetweenSteps);
        if (stopping_.load(std::memory_order_acquire)) return;
        (*function_)(index);
        returned_.fetch_add(1, std::memory_order_acq_rel);
        returned_.notify_all();
    }
}

}  // namespace nybble
