#include "threads/thread_pool.hpp"

#include <chrono>
#include <csignal>
#include <pthread.h>

#include "threads/waiting.hpp"

namespace nybble {

ThreadPool::ThreadPool(size_t threads) : is_placed_(false), arrivals_(threads, arrive_anywhere()) { start_workers(1); }

ThreadPool::ThreadPool(const std::vector<Place>& places) : is_placed_(true), arrivals_(places.size()) {
    start_workers(0);
    run([&](size_t index) { arrivals_[index] = arrive(places[index]); });
}

ThreadPool::~ThreadPool() { stop(); }

void ThreadPool::start_workers(size_t first_index) {
    // Signals belong to the caller's thread: Ctrl-C must reach Python, not a worker. Those that an instruction raises
    // can only be handled where it ran, and end the process where they are blocked.
    sigset_t others, previous;
    sigfillset(&others);
    for (const int raised : {SIGILL, SIGSEGV, SIGBUS, SIGFPE, SIGTRAP}) sigdelset(&others, raised);
    pthread_sigmask(SIG_SETMASK, &others, &previous);
    try {
        for (size_t index = first_index; index < size(); ++index) workers_.emplace_back(&ThreadPool::work, this, index);
    } catch (...) {
        pthread_sigmask(SIG_SETMASK, &previous, nullptr);
        stop();
        throw;
    }
    pthread_sigmask(SIG_SETMASK, &previous, nullptr);
}

void ThreadPool::stop() {
    stopping_.store(true, std::memory_order_release);
    round_.fetch_add(1, std::memory_order_release);
    round_.notify_all();
    for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::run(const std::function<void(size_t)>& function, const std::function<void()>& glance) {
    if (workers_.empty()) {
        function(0);
        return;
    }
    function_ = &function;
    const auto expected = returned_.load(std::memory_order_relaxed) + static_cast<uint32_t>(workers_.size());
    round_.fetch_add(1, std::memory_order_release);
    round_.notify_all();
    if (is_placed_) {
        wait_for_workers(expected, glance);
    } else {
        function(0);
        wait_until_reached(returned_, expected, kSpinTime);
    }
}

// Asleep: all CPUs there are for work belong to the workers.
void ThreadPool::wait_for_workers(uint32_t expected, const std::function<void()>& glance) {
    constexpr std::chrono::milliseconds kGlanceTime{20};
    std::unique_lock lock(returning_);
    const auto all_returned = [&] { return returned_.load(std::memory_order_acquire) == expected; };
    while (!returned_changed_.wait_for(lock, kGlanceTime, all_returned)) glance();
}

void ThreadPool::work(size_t index) {
    uint32_t round = 0;
    for (;;) {
        wait_until_reached(round_, ++round, kSpinTimeBetweenSteps);
        if (stopping_.load(std::memory_order_acquire)) return;
        (*function_)(index);
        if (is_placed_) {
            // Within the lock, or a caller on its way to sleep would miss it.
            const std::lock_guard lock(returning_);
            returned_.fetch_add(1, std::memory_order_acq_rel);
            returned_changed_.notify_all();
        } else {
            returned_.fetch_add(1, std::memory_order_acq_rel);
            returned_.notify_all();
        }
    }
}

}  // namespace nybble
