#include "packing/packed_matrix.hpp"

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "base/half.hpp"

namespace nybble {
namespace {

// A scale or an offset.
float read_number(const PackedFormat& format, const uint8_t* from) {
    if (format.wide_scales) {
        float number;
        std::memcpy(&number, from, sizeof number);
        return number;
    }
    uint16_t bits;
    std::memcpy(&bits, from, sizeof bits);
    return half_to_float(bits);
}

}  // namespace

const char* name_of(WeightType type) {
    switch (type) {
        case WeightType::w2: return "w2";
        case WeightType::w4: return "w4";
        case WeightType::w8: return "w8";
        case WeightType::f16: return "f16";
        case WeightType::bf16: return "bf16";
        case WeightType::f32: return "f32";
    }
    return "unknown";
}

size_t bits_of(WeightType type) {
    switch (type) {
        case WeightType::w2: return 2;
        case WeightType::w4: return 4;
        case WeightType::w8: return 8;
        case WeightType::f16:
        case WeightType::bf16: return 16;
        case WeightType::f32: return 32;
    }
    return 0;
}

size_t PackedFormat::code_bytes() const { return block * kPanelChannels * bits_of(type) / 8; }

size_t PackedFormat::block_bytes() const {
    if (!is_quantised(type)) return code_bytes();
    return code_bytes() + (has_offsets ? 2 : 1) * kPanelChannels * scale_bytes();
}

bool PackedFormat::is_possible() const {
    if (!is_quantised(type)) return layout == Layout::panel32;
    const LayoutTraits& traits = traits_of(layout);
    if (traits.split && type != WeightType::w4) return false;
    if (traits.share && type == WeightType::w2) return false;
    return block % (traits.depth * (traits.share ? 1 : 8 / bits_of(type))) == 0;
}

int PackedFormat::flipped_bits() const {
    return traits_of(layout).signed_codes && !has_offsets ? 1 << (bits_of(type) - 1) : 0;
}

size_t PackedFormat::panel_bytes(size_t k) const {
    if (k > SIZE_MAX - block) throw std::bad_alloc();
    const size_t bytes = checked_multiply((k + block - 1) / block, block_bytes());
    const bool is_even = bytes % (2 * kCacheLine) == 0;
    return traits_of(layout).odd_panels && is_even ? bytes + kCacheLine : bytes;
}

size_t PackedFormat::matrix_bytes(size_t n, size_t k) const {
    if (n > SIZE_MAX - kPanelChannels) throw std::bad_alloc();
    return checked_multiply((n + kPanelChannels - 1) / kPanelChannels, panel_bytes(k));
}

PackedMatrix::PackedMatrix(PackedFormat format, size_t n, size_t k, uint8_t* data,
                           std::shared_ptr<const Memory> storage)
    : format_(format),
      n_(n),
      k_(k),
      block_bytes_(format.block_bytes()),
      panel_bytes_(format.panel_bytes(k)),
      data_(data),
      storage_(std::move(storage)) {}

CodePlace place_of_code(const PackedFormat& format, size_t channel, size_t k) {
    const LayoutTraits& traits = traits_of(format.layout);
    const size_t bits = bits_of(format.type), depth = traits.depth;
    const size_t run = k / depth, runs_of_line = 8 / bits;
    if (traits.share) {
        const size_t channels = kPanelChannels / runs_of_line;
        const size_t byte = (run * channels + channel % channels) * depth + k % depth;
        return {byte, static_cast<int>(channel / channels * bits)};
    }
    const size_t byte = (run / runs_of_line * kPanelChannels + channel) * depth + k % depth;
    return {byte, static_cast<int>(run % runs_of_line * bits)};
}

void PackedMatrix::decode_row(size_t channel, float* out) const {
    const uint8_t* block = panel(channel / kPanelChannels);
    const size_t lane = channel % kPanelChannels;
    if (!is_quantised(format_.type)) {
        for (size_t k = 0; k < k_; ++k, block += block_bytes_) {
            if (format_.type == WeightType::f32) {
                std::memcpy(out + k, block + lane * 4, 4);
                continue;
            }
            uint16_t bits;
            std::memcpy(&bits, block + lane * 2, 2);
            out[k] = format_.type == WeightType::f16 ? half_to_float(bits) : bfloat_to_float(bits);
        }
        return;
    }
    const size_t bits_per_code = bits_of(format_.type);
    const auto zero_point = static_cast<float>(1 << (bits_per_code - 1));
    const int mask = (1 << bits_per_code) - 1, flipped = format_.flipped_bits();
    for (size_t begin = 0; begin < k_; begin += format_.block, block += block_bytes_) {
        const uint8_t* numbers = block + format_.code_bytes() + lane * format_.scale_bytes();
        const float scale = read_number(format_, numbers);
        float offset = -zero_point * scale;  // exact: times a power of two
        if (format_.has_offsets) offset = read_number(format_, numbers + kPanelChannels * format_.scale_bytes());
        const size_t count = std::min(format_.block, k_ - begin);
        const size_t depth = traits_of(format_.layout).depth;
        for (size_t run = 0; run < count; run += depth) {
            const CodePlace place = place_of_code(format_, lane, run);
            const size_t end = std::min(run + depth, count);
            for (size_t i = run; i < end; ++i) {
                const int code = ((block[place.byte + i - run] >> place.shift) & mask) ^ flipped;
                // Exact in double, then rounded once, as a fused multiply-add does it.
                out[begin + i] = static_cast<float>(static_cast<double>(scale) * code + offset);
            }
        }
    }
}

}  // namespace nybble
