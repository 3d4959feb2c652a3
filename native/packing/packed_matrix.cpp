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

size_t PackedFormat::matrix_bytes(size_t n, size_t k) const {
    if (n > SIZE_MAX - kPanelChannels || k > SIZE_MAX - block) throw std::bad_alloc();
    const size_t panels = (n + kPanelChannels - 1) / kPanelChannels;
    return checked_multiply(panels, checked_multiply((k + block - 1) / block, block_bytes()));
}

PackedMatrix::PackedMatrix(PackedFormat format, size_t n, size_t k, uint8_t* data,
                           std::shared_ptr<const Memory> storage)
    : format_(format),
      n_(n),
      k_(k),
      block_bytes_(format.block_bytes()),
      panel_bytes_((k + format.block - 1) / format.block * format.block_bytes()),
      data_(data),
      storage_(std::move(storage)) {}

CodePlace place_of_code(WeightType type, size_t channel, size_t k) {
    const size_t half = channel / 16, lane = channel % 16;
    const size_t groups_per_line = 8 / bits_of(type), group = k / kGroupCodes;
    const size_t line = group / groups_per_line * 2 + half;
    return {line * 64 + lane * kGroupCodes + k % kGroupCodes,
            static_cast<int>(group % groups_per_line * bits_of(type))};
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
    const int mask = (1 << bits_per_code) - 1;
    for (size_t begin = 0; begin < k_; begin += format_.block, block += block_bytes_) {
        const uint8_t* numbers = block + format_.code_bytes() + lane * format_.scale_bytes();
        const float scale = read_number(format_, numbers);
        float offset = -zero_point * scale;  // exact: times a power of two
        if (format_.has_offsets) offset = read_number(format_, numbers + kPanelChannels * format_.scale_bytes());
        const size_t count = std::min(format_.block, k_ - begin);
        for (size_t group = 0; group < count; group += kGroupCodes) {
            const CodePlace place = place_of_code(format_.type, lane, group);
            const size_t end = std::min(group + kGroupCodes, count);
            for (size_t i = group; i < end; ++i) {
                const auto code = static_cast<float>((block[place.byte + i - group] >> place.shift) & mask);
                // Exact in double, then rounded once, as a fused multiply-add does it.
                out[begin + i] = static_cast<float>(static_cast<double>(scale) * code + offset);
            }
        }
    }
}

}  // namespace nybble
