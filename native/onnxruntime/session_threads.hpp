// The threads of a session: the pool that ONNX Runtime gave it, as many as the session was told to use.
#pragma once

#include <algorithm>
#include <atomic>
#include <new>
#include <thread>

#include "onnxruntime/runtime.hpp"

namespace nybble::onnxruntime {

class SessionThreads {
  public:
    SessionThreads(const Runtime& runtime, const OrtKernelContext* context) : runtime_(runtime), context_(context) {}

    // As many as may take part; the session can have fewer.
    static size_t most() {
        static const size_t cpus = std::max(1u, std::thread::hardware_concurrency());  // those this process may use
        return cpus;
    }

    // Call function(task) once for each task and return when all are done. Threads claim runs of successive tasks, long
    // ones first: each reads memory in long streams, and one that a neighbour process holds up leaves its part to
    // others.
    template <typename Function>
    void share(size_t tasks, const Function& function) const {
        share(tasks, [] { return 0; }, [&function](size_t task, int) { function(task); });
    }

    // The same, of function(task, kept): `kept` is what keep() made for a thread, which it keeps from task to task.
    template <typename Keep, typename Function>
    void share(size_t tasks, const Keep& keep, const Function& function) const {
        using AllClaims = Claims<Keep, Function>;
        const size_t places = std::min(tasks, most());
        AllClaims claims{keep, function, tasks, 2 * places, {0}, {false}};
        if (places > 1) {
            runtime_.check(runtime_.KernelContext_ParallelFor(context_, &AllClaims::take, places, 0, &claims));
        } else if (places == 1) {
            AllClaims::take(&claims, 0);
        }
        if (claims.out_of_memory) throw std::bad_alloc();
    }

  private:
    template <typename Keep, typename Function>
    struct Claims {
        const Keep& keep;
        const Function& function;
        size_t tasks, parts;
        std::atomic<size_t> next;
        std::atomic<bool> out_of_memory;

        static void take(void* data, size_t) {
            auto& claims = *static_cast<Claims*>(data);
            try {
                claims.take();
            } catch (const std::bad_alloc&) {
                claims.out_of_memory = true;  // an exception must not end a thread of the pool
            }
        }

        void take() {
            auto kept = keep();
            size_t begin = next.load(std::memory_order_relaxed);
            while (begin < tasks) {
                const size_t end = begin + std::max<size_t>(1, (tasks - begin) / parts);
                if (!next.compare_exchange_weak(begin, end, std::memory_order_relaxed)) continue;
                for (size_t task = begin; task < end; ++task) function(task, kept);
                begin = next.load(std::memory_order_relaxed);
            }
        }
    };

    const Runtime& runtime_;
    const OrtKernelContext* context_;
};

}  // namespace nybble::onnxruntime
