// In what order a panel holds its codes, and rows of activations theirs.
// `static`, because files compiled for different instruction sets must not share one copy.
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <string_view>

namespace nybble {

inline constexpr size_t kPanelChannels = 32;

// Weights are packed for the kernels that will read them. Panels of all layouts have the same channels, blocks, scales
// and offsets; they differ in the order of the codes. Floats know panel32 only.
enum class Layout { panel32, panel32k8, panel32k16, panel32k32 };

// A line holds `depth` bytes of each channel, one channel after another. Its byte channel · depth + j is the code of
// k = j; of 4-bit codes the low half, the high half being k = depth + j; of 2-bit codes the lowest quarter, those above
// being k = depth + j, 2 · depth + j and 3 · depth + j. So neighbouring channels are a matrix of (channels, depth).
// Where channels `share` bytes, the high halves of 4-bit codes are not further k but further channels: a line holds 16,
// the high half of channel c's byte being channel 16 + c at the same k. Blocks may then be as short as `depth`.
// Where there are several rows of activations, they alternate between `rows` rows (a power of two) every `depth`
// features: matrices of (rows, depth), one after another.
//
// Matrix units of 4 bits take activations in two: a = 16 · high + low, a signed high half and an unsigned low one. In
// `split` layouts each 2 · depth features are first a matrix of the rows' low halves, with k = j in the low half of
// byte j and k = depth + j in its high half, as codes lie; then one of their high halves.
struct LayoutTraits {
    Layout layout;
    std::string_view name;
    size_t depth;
    size_t rows;
    // Panels take an odd number of cache lines. Several cores read a panel each, at the same pace: this way they do
    // not meet in the same sets of the cache they share.
    bool odd_panels;
    // The highest bits of codes without offsets are flipped: they are code − 2^(bits−1) in two's complement.
    bool signed_codes = false;
    bool split = false;
    bool share = false;
};

static constexpr std::array kLayouts = {
    LayoutTraits{Layout::panel32, "panel32", 4, 1, false},
    LayoutTraits{Layout::panel32k8, "panel32k8", 8, 8, true},
    LayoutTraits{Layout::panel32k16, "panel32k16", 16, 8, true, true, false, true},
    LayoutTraits{Layout::panel32k32, "panel32k32", 16, 8, true, true, true},
};

static constexpr const LayoutTraits& traits_of(Layout layout) { return kLayouts[static_cast<size_t>(layout)]; }

static constexpr std::string_view name_of(Layout layout) { return traits_of(layout).name; }

static constexpr std::optional<Layout> find_layout(std::string_view name) {
    for (const LayoutTraits& traits : kLayouts) {
        if (traits.name == name) return traits.layout;
    }
    return std::nullopt;
}

}  // namespace nybble
