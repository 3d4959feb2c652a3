#include "program/staged_linear.hpp"

namespace nybble {

std::string staging_refusal(const Staging& staging, const StagedSizes& sizes) {
    const auto less = [](size_t found, const char* what, size_t least) {
        return std::to_string(found) + " " + what + ", less than " + std::to_string(least);
    };
    switch (sizes.unfit(staging)) {
        case StagedSizes::Unfit::none: return "";
        case StagedSizes::Unfit::features: return less(sizes.k, "features", kLeastStagedFeatures);
        case StagedSizes::Unfit::bytes: return less(sizes.bytes, "bytes of weights", kLeastStagedBytes);
        case StagedSizes::Unfit::panels: return less(sizes.panels, "panel of channels", kLeastStagedPanels);
        case StagedSizes::Unfit::block: break;
    }
    return std::to_string(sizes.activation_bytes() + sizes.panel_bytes) +
           " bytes of activations and of a panel, more than a block has: " + std::to_string(staging.block_bytes());
}

}  // namespace nybble
