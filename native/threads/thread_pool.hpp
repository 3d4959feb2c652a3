// A persistent pool. Every thread runs the same function; what there is to do is divided by SharedWork.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "threads/place.hpp"
#include "threads/staging.hpp"

namespace nybble {

class ThreadPool {
  public:
    // Threads wherever the scheduler puts them; the caller of run() is one of them. Throws std::system_error when a
    // thread can't be started.
    explicit ThreadPool(size_t threads);
    // A thread in each of these places. The caller of run() is none of them: it only waits, and stays where it is.
    explicit ThreadPool(const std::vector<Place>& places);
    ~ThreadPool();
    ThreadPool(const ThreadPool&) = delete;
    ThreadPool& operator=(const ThreadPool&) = delete;

    size_t size() const { return arrivals_.size(); }
    bool is_placed() const { return is_placed_; }

    // What each thread found where it is; without places, what the caller of the constructor did.
    const std::vector<Arrival>& arrivals() const { return arrivals_; }

    // Take a block of `library` for each thread. Throws std::runtime_error and changes nothing: why not.
    void stage(const std::string& library, const std::vector<size_t>& blocks) {
        staging_ = std::make_unique<Staging>(*this, library, blocks);
    }
    // Null: there is none.
    const Staging* staging() const { return staging_.get(); }

    // Call function(thread index) once on every thread and return when all are done. Without places thread 0 is the
    // caller; with places the caller calls glance() now and then. Not re-entrant; neither may throw.
    void run(const std::function<void(size_t)>& function, const std::function<void()>& glance = [] {});

  private:
    void start_workers(size_t first_index);
    void work(size_t index);
    void wait_for_workers(uint32_t expected, const std::function<void()>& glance);
    void stop();

    const bool is_placed_;
    std::vector<Arrival> arrivals_;
    std::unique_ptr<const Staging> staging_;
    const std::function<void(size_t)>* function_ = nullptr;
    alignas(64) std::atomic<uint32_t> round_{0};     // of calls to run()
    alignas(64) std::atomic<uint32_t> returned_{0};  // calls of functions by workers, of all rounds
    std::atomic<bool> stopping_{false};
    // For a caller that only waits.
    std::mutex returning_;
    std::condition_variable returned_changed_;
    std::vector<std::thread> workers_;
};

}  // namespace nybble
