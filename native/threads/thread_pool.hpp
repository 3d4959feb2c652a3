// A persistent pool. Every thread runs the same function; work is claimed inside it from atomic counters.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

namespace nybble {

// A place where all threads of a pool wait for one another. Waiters spin briefly, then sleep, so that a neighbour
// process that takes a core away costs its share and not a collapse.
class Barrier {
  public:
    explicit Barrier(size_t threads) : threads_(static_cast<uint32_t>(threads)) {}
    void wait();

  private:
    uint32_t threads_;
    alignas(64) std::atomic<uint32_t> arrived_{0};
    alignas(64) std::atomic<uint32_t> generation_{0};
};

class ThreadPool {
  public:
    // The caller of run() is one of the `threads`. Throws std::system_error when a thread can't be started.
    explicit ThreadPool(size_t threads);
    ~ThreadPool();
    ThreadPool(const ThreadPool&) = delete;
    ThreadPool& operator=(const ThreadPool&) = delete;

    size_t size() const { return workers_.size() + 1; }
    Barrier& barrier() { return barrier_; }

    // Call function(thread index) once on every thread, 0 being the caller, and return when all are done.
    // Not re-entrant; the function must not throw.
    void run(const std::function<void(size_t)>& function);

  private:
    void work(size_t index);
    void stop();

    Barrier barrier_;
    const std::function<void(size_t)>* function_ = nullptr;
    alignas(64) std::atomic<uint32_t> round_{0};
    alignas(64) std::atomic<uint32_t> running_{0};
    std::atomic<bool> stopping_{false};
    std::vector<std::thread> workers_;
};

}  // namespace nybble
