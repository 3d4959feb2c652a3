#include "program/staged_linear.hpp"

namespace nybble {

std::string staging_refusal(const Staging& staging, const StagedSizes& sizes) {
    const auto less = [](size_t found, const char* what, size_t least) {
        return std::to_string(found) + " " + what + ", less than " + std::to_string(least);
    };
    if (sizes.k < kLeastStagedFeatures) return less(sizes.k, "features", kLeastStagedFeatures);
    if (sizes.bytes < kLeastStagedBytes) return less(sizes.bytes, "bytes of weights", kLeastStagedBytes);
    if (sizes.panels < kLeastStagedPanels) return less(sizes.panels, "panel of channels", kLeastStagedPanels);
    if (!sizes.fit(staging)) {
        return std::to_string(sizes.activation_bytes() + sizes.panel_bytes) +
               " bytes of activations and of a panel, more than a block has: " + std::to_string(staging.block_bytes());
    }
    return "";
}

}  // namespace nybble
