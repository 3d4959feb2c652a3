// Rounds of tasks that the threads of a pool divide among themselves.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "threads/waiting.hpp"

namespace nybble {

// Every thread takes part in each round with a Worker of its own. The tasks of a round lie in one part for each thread,
// which it does from the front; with its own part done it takes tasks from the backs of the others'. So each thread
// reads memory in one long stream, the same in every step, and all end together. No task of a round begins before all
// of the round before are done. A thread that is late, or that a neighbour process has pushed off its core, is not
// waited for unless it holds a task.
class SharedWork {
  public:
    explicit SharedWork(size_t threads) : parts_(threads) {}

    // Back to round 0; no thread may be in a round.
    void reset() {
        for (Part& part : parts_) part.claims.store(0, std::memory_order_relaxed);
        done_.store(0, std::memory_order_relaxed);
        finished_round_.store(0, std::memory_order_relaxed);
    }

    size_t threads() const { return parts_.size(); }

  private:
    friend class Worker;

    // What is claimed of a part in the last round in which anything was: round, tasks from the front and from the back.
    static constexpr int kCountBits = 24;
    static constexpr uint64_t kCount = (uint64_t{1} << kCountBits) - 1;

    struct alignas(64) Part {
        std::atomic<uint64_t> claims{0};
    };

    std::vector<Part> parts_;
    alignas(64) std::atomic<uint64_t> done_{0};  // tasks, of all rounds
    alignas(64) std::atomic<uint32_t> finished_round_{0};
};

// One thread's way through the rounds of a SharedWork since its last reset.
class Worker {
  public:
    // `thread` from 0 to below work.threads().
    Worker(SharedWork& work, size_t thread) : work_(work), thread_(thread) {}

    // One round: call function(task) for tasks nobody else has claimed, and return when all are done. Whoever ends the
    // last one calls finish() before anyone returns. `meanwhile()` is called again and again while waiting; it should
    // take some ten nanoseconds, and return false when it has nothing to do any more. Every thread must give the same
    // `tasks`, below 2^24 for each thread; a program has less than 2^16 rounds.
    template <typename Function, typename Finish, typename Meanwhile>
    void share(size_t tasks, const Function& function, const Finish& finish, const Meanwhile& meanwhile) {
        ++round_;
        // A round without tasks has to be finished by somebody, too.
        const size_t claimable = tasks == 0 ? 1 : tasks;
        expected_ += claimable;
        uint64_t mine = 0;
        for (size_t i = 0; i < work_.threads(); ++i) {
            const size_t part = thread_ + i < work_.threads() ? thread_ + i : thread_ + i - work_.threads();
            const size_t begin = first_task(claimable, part), end = first_task(claimable, part + 1);
            for (size_t task; claim(part, i != 0, begin, end, task); ++mine) {
                if (tasks != 0) function(task);
            }
        }
        if (mine != 0 && work_.done_.fetch_add(mine, std::memory_order_acq_rel) + mine == expected_) {
            finish();
            work_.finished_round_.store(round_, std::memory_order_release);
            work_.finished_round_.notify_all();
        } else {
            wait_until_reached(work_.finished_round_, round_, kSpinTime, meanwhile);
        }
    }

    template <typename Function>
    void share(size_t tasks, const Function& function) {
        share(tasks, function, [] {}, [] { return false; });
    }

    // The first of the tasks that are this thread's part.
    size_t first_task(size_t tasks) const { return first_task(tasks, thread_); }

  private:
    size_t first_task(size_t tasks, size_t part) const { return tasks * part / work_.threads(); }

    bool claim(size_t part, bool from_back, size_t begin, size_t end, size_t& task) {
        constexpr int bits = SharedWork::kCountBits;
        std::atomic<uint64_t>& claims = work_.parts_[part].claims;
        uint64_t seen = claims.load(std::memory_order_relaxed);
        for (;;) {
            const uint64_t seen_round = seen >> (2 * bits);
            if (seen_round > round_) return false;  // the others have gone on
            const uint64_t now = seen_round == round_ ? seen : uint64_t{round_} << (2 * bits);
            const uint64_t front = now & SharedWork::kCount, back = now >> bits & SharedWork::kCount;
            if (begin + front + back >= end) return false;
            const uint64_t claimed = now + (from_back ? uint64_t{1} << bits : 1);
            if (!claims.compare_exchange_weak(seen, claimed, std::memory_order_relaxed)) continue;
            task = from_back ? end - 1 - back : begin + front;
            return true;
        }
    }

    SharedWork& work_;
    size_t thread_;
    uint32_t round_ = 0;
    uint64_t expected_ = 0;  // tasks of all rounds up to this one
};

}  // namespace nybble
