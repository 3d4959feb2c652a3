// How a linear is divided among threads.
#pragma once

#include <algorithm>

#include "kernels/kernel.hpp"

namespace nybble {

// A task is a panel × a run of rows. Runs are as long as their activations stay in the L2 cache, so that the cost of
// spreading a panel is shared by many rows, but there are enough tasks for all threads.
class LinearTasks {
  public:
    LinearTasks(const PackedMatrix& weights, size_t rows, size_t threads) : rows_(rows), panels_(weights.panels()) {
        if (rows == 0) return;
        const size_t cached = std::max(kLeastRows, kCachedActivations / weights.k());
        const size_t wanted = std::max((rows + cached - 1) / cached, (threads * 4 + panels_ - 1) / panels_);
        runs_ = std::min(wanted, (rows + kLeastRows - 1) / kLeastRows);
        run_length_ = round_up((rows + runs_ - 1) / runs_, traits_of(weights.format().layout).rows);
    }

    size_t count() const { return panels_ * runs_; }

    // `scratch` holds LinearKernel::scratch_bytes.
    void run(size_t task, const LinearKernel& kernel, const LinearArguments& arguments, uint8_t* scratch) const {
        const size_t begin = task / panels_ * run_length_;
        const size_t end = std::min(begin + run_length_, rows_);
        if (begin < end) kernel.run(arguments, task % panels_, begin, end, scratch);
    }

  private:
    static constexpr size_t kLeastRows = 48;
    static constexpr size_t kCachedActivations = size_t{512} << 10;

    size_t rows_, panels_;
    size_t runs_ = 0, run_length_ = 0;
};

}  // namespace nybble
