#include "measure/ceilings.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <limits>
#include <map>

#include "base/memory.hpp"
#include "kernels/registry.hpp"
#include "threads/shared_work.hpp"

namespace nybble {
namespace {

using Clock = std::chrono::steady_clock;

// Passes are at least this long: starting the threads costs microseconds.
constexpr double kShortestPass = 2e-3;

// What a thread reads before it asks for more: a late thread delays the others by this at most.
constexpr size_t kPartBytes = size_t{1} << 20;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// Seconds of the fastest of the passes that all threads make together within about `seconds`; at least three.
// `prepare` runs before each and is not timed.
double fastest_pass(ThreadPool& threads, double seconds, const std::function<void(size_t thread)>& prepare,
                    const std::function<void(size_t thread)>& pass) {
    const Clock::time_point begin = Clock::now();
    double fastest = std::numeric_limits<double>::infinity();
    for (int passes = 0; passes < 3 || seconds_since(begin) < seconds; ++passes) {
        threads.run(prepare);
        const Clock::time_point start = Clock::now();
        threads.run(pass);
        fastest = std::min(fastest, seconds_since(start));
    }
    return fastest;
}

// Calls function(data, bytes) for what lies in begin..end when the extents are laid end to end.
template <typename Function>
void for_each_part(const std::vector<Extent>& extents, size_t begin, size_t end, const Function& function) {
    size_t at = 0;
    for (const Extent& extent : extents) {
        const size_t first = std::max(begin, at), last = std::min(end, at + extent.bytes);
        if (first < last) function(extent.data + (first - at), last - first);
        at += extent.bytes;
    }
}

// Results that someone might look at: no loop may be optimised away for want of a reader.
void use(double value) {
    static std::atomic<double> sink;
    sink.store(value, std::memory_order_relaxed);
}

// What a thread repeats: rounds of so many multiply-adds.
struct Loop {
    std::function<double(size_t rounds)> run;
    size_t products;
};

// How many rounds take twice kShortestPass on the CPU under this thread.
size_t rounds_of_a_pass(const Loop& loop) {
    for (size_t rounds = 64;; rounds *= 2) {
        const Clock::time_point start = Clock::now();
        use(loop.run(rounds));
        const double taken = seconds_since(start);
        if (taken >= kShortestPass)
            return static_cast<size_t>(2 * kShortestPass / taken * static_cast<double>(rounds)) + 1;
    }
}

// Multiply-adds per second of all threads together. Those with the same instruction set make as many rounds, others as
// many as take them as long.
double peak(ThreadPool& threads, const std::vector<Isa>& isas, double seconds,
            const std::function<Loop(Isa)>& loop_of) {
    std::vector<Loop> loops;
    for (const Isa isa : isas) loops.push_back(loop_of(isa));
    // By the threads themselves: the CPU under the caller may not have what they run.
    std::vector<size_t> rounds(threads.size());
    threads.run([&](size_t thread) { rounds[thread] = rounds_of_a_pass(loops[thread]); });
    std::map<Isa, size_t> most;
    for (size_t thread = 0; thread < threads.size(); ++thread) {
        most[isas[thread]] = std::max(most[isas[thread]], rounds[thread]);
    }
    size_t products = 0;
    for (size_t thread = 0; thread < threads.size(); ++thread) {
        products += loops[thread].products * most[isas[thread]];
    }
    const auto pass = [&](size_t thread) { use(loops[thread].run(most.at(isas[thread]))); };
    return static_cast<double>(products) / fastest_pass(threads, seconds, [](size_t) {}, pass);
}

PeakOperands operands() {
    PeakOperands result{};
    for (auto& vector : result.codes) std::fill(std::begin(vector), std::end(vector), uint8_t{3});
    for (auto& vector : result.weights) std::fill(std::begin(vector), std::end(vector), 0.5f);
    for (auto& group : result.activations) std::fill(std::begin(group), std::end(group), 0x01ff02fe);
    for (auto& group : result.factors) std::fill(std::begin(group), std::end(group), 0.25f);
    return result;
}

}  // namespace

double read_bandwidth(ThreadPool& threads, const std::vector<Extent>& extents, size_t cache_bytes, double seconds) {
    size_t total = 0;
    for (const Extent& extent : extents) total += extent.bytes;
    if (total == 0) return 0.0;
    const auto read = [&](size_t thread, const uint8_t* data, size_t bytes) {
        const PeakKernels& kernels = peak_kernels(threads.arrivals()[thread].isas.front());
        use(kernels.read(data, bytes / kReadBytes * kReadBytes));
    };
    const Memory others(2 * cache_bytes, Pages::small);
    if (cache_bytes != 0) std::memset(others.data(), 1, others.bytes());
    const size_t parts = (total + kPartBytes - 1) / kPartBytes;
    SharedWork work(threads.size());
    const auto evict = [&](size_t thread) {
        read(thread, others.data(), others.bytes());
        if (thread == 0) work.reset();
    };
    const auto pass = [&](size_t thread) {
        Worker(work, thread).share(parts, [&](size_t part) {
            for_each_part(extents, part * kPartBytes, std::min(total, (part + 1) * kPartBytes),
                          [&](const uint8_t* data, size_t bytes) { read(thread, data, bytes); });
        });
    };
    return static_cast<double>(total) / fastest_pass(threads, seconds, evict, pass);
}

double int8_peak(ThreadPool& threads, const std::vector<Isa>& isas, double seconds) {
    const PeakOperands from = operands();
    return peak(threads, isas, seconds, [&](Isa isa) -> Loop {
        if (const MatrixPeak* matrices = matrix_peak(isa)) {
            return {[=, &from](size_t rounds) { return matrices->multiply(rounds, from); }, matrices->products};
        }
        const PeakKernels& kernels = peak_kernels(isa);
        return {[&](size_t rounds) { return kernels.multiply_integers(rounds, from); }, kernels.integer_products};
    });
}

double fp32_peak(ThreadPool& threads, const std::vector<Isa>& isas, double seconds) {
    const PeakOperands from = operands();
    return peak(threads, isas, seconds, [&](Isa isa) -> Loop {
        const PeakKernels& kernels = peak_kernels(isa);
        return {[&](size_t rounds) { return kernels.multiply_floats(rounds, from); }, kernels.float_products};
    });
}

}  // namespace nybble
