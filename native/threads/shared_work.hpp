// Tasks that the threads of a pool divide among themselves.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "threads/waiting.hpp"

namespace nybble {

// One piece of work. Threads claim tasks until none is left, then wait for those others are still at. A thread that is
// late, or that a neighbour process has pushed off its core, is not waited for unless it holds a task.
class SharedWork {
  public:
    // Make it new; no thread may be in share().
    void reset() {
        next_.store(0, std::memory_order_relaxed);
        done_.store(0, std::memory_order_relaxed);
        complete_.store(0, std::memory_order_relaxed);
    }

    // Call function(task) for tasks nobody has claimed yet; return when all are done. Every thread must give the same
    // `tasks` and `threads`. Runs of successive tasks are claimed, long ones first: whoever claims next takes a part of
    // what is left, so that each thread reads memory in long streams and all of them end together.
    template <typename Function>
    void share(size_t tasks, size_t threads, const Function& function) {
        if (tasks == 0) return;
        size_t mine = 0, begin = next_.load(std::memory_order_relaxed);
        while (begin < tasks) {
            const size_t left = tasks - begin, part = left / (2 * threads);
            const size_t end = begin + (part == 0 ? 1 : part);
            if (!next_.compare_exchange_weak(begin, end, std::memory_order_relaxed)) continue;
            for (size_t task = begin; task < end; ++task) function(task);
            mine += end - begin;
            begin = next_.load(std::memory_order_relaxed);
        }
        if (mine != 0 && done_.fetch_add(mine, std::memory_order_acq_rel) + mine == tasks) {
            complete_.store(1, std::memory_order_release);
            complete_.notify_all();
        } else {
            wait_for_change(complete_, 0);
        }
    }

  private:
    alignas(64) std::atomic<size_t> next_{0};
    alignas(64) std::atomic<size_t> done_{0};
    std::atomic<uint32_t> complete_{0};
};

}  // namespace nybble
