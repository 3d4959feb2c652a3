// How a linear is divided among threads.
#pragma once

#include <algorithm>

#include "base/memory.hpp"
#include "kernels/outlier_columns.hpp"

namespace nybble {

// A task is a panel × a run of rows. Runs are as long as a kernel takes and their activations stay in the L2 cache, so
// that the cost of spreading a panel is shared by many rows, but there are enough tasks for all threads.
class LinearTasks {
  public:
    LinearTasks(const PackedMatrix& weights, size_t rows, size_t threads) : rows_(rows), panels_(weights.panels()) {
        if (rows == 0) return;
        const size_t cached = std::clamp(kCachedActivations / weights.k(), kLeastRows, kMostRows);
        const size_t wanted = std::max((rows + cached - 1) / cached, (threads * 4 + panels_ - 1) / panels_);
        runs_ = std::min(wanted, (rows + kLeastRows - 1) / kLeastRows);
        run_length_ = round_up((rows + runs_ - 1) / runs_, kWholeTiles);
        // Sorting outliers costs about as much as they do in one panel.
        sorts_outliers_ = rows >= kLeastRows && panels_ >= threads * 4;
    }

    size_t count() const { return panels_ * runs_; }

    static size_t scratch_bytes(const PackedMatrix& weights, const LinearKernel& kernel) {
        return kernel_bytes(weights, kernel) + outlier_columns_bytes(weights.k(), kMostRows);
    }

    // What a thread knows from one task to the next, which is mostly of the same run.
    struct Kept {
        uint8_t* scratch;  // scratch_bytes
        size_t run = SIZE_MAX;
        OutlierColumns columns{};
    };

    void run(size_t task, const LinearKernel& kernel, LinearArguments arguments, Kept& kept) const {
        const size_t run = task / panels_, begin = run * run_length_, end = std::min(begin + run_length_, rows_);
        if (begin >= end) return;
        if (sorts_outliers_ && arguments.quantised.codes != nullptr) {
            if (kept.run != run) {
                uint8_t* behind = kept.scratch + kernel_bytes(*arguments.weights, kernel);
                kept.columns = sort_outliers(arguments.quantised, begin, end, behind);
                kept.run = run;
            }
            arguments.outliers = &kept.columns;
        }
        kernel.run(arguments, task % panels_, begin, end, kept.scratch);
    }

  private:
    static constexpr size_t kLeastRows = 48;
    static constexpr size_t kWholeTiles = 24;  // rows: a multiple of every kernel's tiles
    static constexpr size_t kCachedActivations = size_t{512} << 10;

    static size_t kernel_bytes(const PackedMatrix& weights, const LinearKernel& kernel) {
        return round_up(kernel.scratch_bytes(weights), kCacheLine);
    }

    static_assert(kMostRows % kWholeTiles == 0);

    size_t rows_, panels_;
    size_t runs_ = 0, run_length_ = 0;
    bool sorts_outliers_ = false;
};

}  // namespace nybble
