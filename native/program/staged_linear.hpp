// A linear of one row whose weights go through memory beside the cores, panel by panel (threads/staging.hpp).
#pragma once

#include <algorithm>
#include <string>

#include "kernels/quantised_rows.hpp"
#include "kernels/registry.hpp"
#include "threads/staging.hpp"

namespace nybble {

// Weights below this are over before a pair has found its step.
inline constexpr size_t kLeastStagedBytes = size_t{2} << 20;
inline constexpr size_t kLeastStagedFeatures = 2048;
inline constexpr size_t kLeastStagedPanels = 2;

struct StagedSizes {
    size_t bytes, k, panels, panel_bytes;

    explicit StagedSizes(const PackedMatrix& weights)
        : StagedSizes{weights.bytes(), weights.k(), weights.panels(), weights.panel_bytes()} {}
    StagedSizes(size_t all, size_t features, size_t count, size_t each)
        : bytes(all), k(features), panels(count), panel_bytes(each) {}

    // Of a row's codes, with what kernels read behind them.
    size_t activation_bytes() const { return round_up(k, kActivationGroup) + 4 * kCacheLine; }
    // The first of them that keeps such weights from being staged.
    enum class Unfit { none, features, bytes, panels, block };
    Unfit unfit(const Staging& staging) const {
        if (k < kLeastStagedFeatures) return Unfit::features;
        if (bytes < kLeastStagedBytes) return Unfit::bytes;
        if (panels < kLeastStagedPanels) return Unfit::panels;
        if (activation_bytes() + panel_bytes > staging.block_bytes()) return Unfit::block;
        return Unfit::none;
    }
    bool fit(const Staging& staging) const { return unfit(staging) == Unfit::none; }
};

// Why such weights are not staged; empty: they are.
std::string staging_refusal(const Staging& staging, const StagedSizes& sizes);

class StagedLinear {
  public:
    // Copies the row's codes; run() then each panel behind them.
    StagedLinear(const Staging& staging, size_t thread, const LinearArguments& arguments, const LinearKernel& kernel,
                 CopyFunction copy)
        : arguments_(arguments), kernel_(kernel), copy_(copy), pair_(staging.pair_of(thread)) {
        const size_t bytes = StagedSizes(*arguments.weights).activation_bytes();
        uint8_t* block = staging.block_of(thread);
        copy_(reinterpret_cast<const uint8_t*>(arguments.quantised.codes), block, bytes);
        arguments_.quantised.codes = reinterpret_cast<int8_t*>(block);
        panel_ = block + bytes;
    }

    void run(size_t panel, uint8_t* scratch) const {
        const PackedMatrix& weights = *arguments_.weights;
        pair_.copying.take([&] { copy_(weights.panel(panel), panel_, weights.panel_bytes()); });
        const size_t channel = panel * kPanelChannels;
        const size_t channels = std::min(kPanelChannels, weights.n() - channel);
        const PackedMatrix staged(weights.format(), channels, weights.k(), panel_, nullptr);
        LinearArguments arguments = arguments_;
        arguments.weights = &staged;
        arguments.output.data += channel;
        if (arguments.bias != nullptr) arguments.bias += channel;
        if (arguments.residual.data != nullptr) arguments.residual.data += channel;
        pair_.multiplying.take([&] { kernel_.run(arguments, 0, 0, 1, scratch); });
    }

  private:
    LinearArguments arguments_;
    const LinearKernel& kernel_;
    CopyFunction copy_;
    Staging::Pair& pair_;
    uint8_t* panel_;
};

}  // namespace nybble
