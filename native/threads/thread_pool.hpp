// A persistent pool. Every thread runs the same function; what there is to do is divided by SharedWork.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

namespace nybble {

class ThreadPool {
  public:
    // The caller of run() is one of the `threads`. Throws std::system_error when a thread can't be started.
    explicit ThreadPool(size_t threads);
    ~ThreadPool();
    ThreadPool(const ThreadPool&) = delete;
    ThreadPool& operator=(const ThreadPool&) = delete;

    size_t size() const { return workers_.size() + 1; }

    // Call function(thread index) once on every thread, 0 being the caller, and return when all are done.
    // Not re-entrant; the function must not throw.
    void run(const std::function<void(size_t)>& function);

  private:
    void work(size_t index);
    void stop();

    const std::function<void(size_t)>* function_ = nullptr;
    alignas(64) std::atomic<uint32_t> round_{0};     // of calls to run()
    alignas(64) std::atomic<uint32_t> returned_{0};  // calls of the function by workers, of all rounds
    std::atomic<bool> stopping_{false};
    std::vector<std::thread> workers_;
};

}  // namespace nybble
