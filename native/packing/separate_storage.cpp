#include "packing/separate_storage.hpp"

#include <algorithm>
#include <charconv>
#include <cstring>

#include "base/half.hpp"

namespace nybble {
namespace {

float read_float(WeightType type, const uint8_t* from, size_t index) {
    if (type == WeightType::f32) {
        float value;
        std::memcpy(&value, from + index * sizeof value, sizeof value);
        return value;
    }
    uint16_t bits;
    std::memcpy(&bits, from + index * sizeof bits, sizeof bits);
    return type == WeightType::f16 ? half_to_float(bits) : bfloat_to_float(bits);
}

template <size_t Bits>
uint8_t read_code(const uint8_t* from, size_t index) {
    constexpr size_t per_byte = 8 / Bits;
    return static_cast<uint8_t>((from[index / per_byte] >> (index % per_byte * Bits)) & ((1 << Bits) - 1));
}

template <size_t Bits>
void decode_separate(const StorageType& type, const StoredRow& row, size_t index, size_t left, DecodedBlock& out) {
    const size_t begin = index * type.packed.block, stored_block = begin / type.elements;
    const size_t count = std::min(left, type.packed.block);
    for (size_t i = 0; i < count; ++i) out.codes[i] = read_code<Bits>(row.data, begin + i);
    out.scale = read_float(type.scales, row.scales, stored_block);
    // Offsets go with the scale as it is kept.
    if (!type.packed.wide_scales) out.scale = half_to_float(float_to_half(out.scale));
    out.offset = 0;
    if (type.zero_points != ZeroPoints::absent) {
        const float zero_point = type.zero_points == ZeroPoints::packed
                                     ? static_cast<float>(read_code<Bits>(row.zero_points, stored_block))
                                     : read_float(type.scales, row.zero_points, stored_block);
        out.offset = -(out.scale * zero_point);
    }
}

// The largest block that kernels know and that divides a stored one. One that is no multiple of 16 is a whole row.
size_t packed_block(size_t stored) {
    const size_t whole = stored % 16 == 0 ? stored : (stored + 31) / 32 * 32;
    size_t block = kLargestBlock;
    while (whole % block != 0) block /= 2;
    return block;
}

bool take(std::string_view& text, std::string_view prefix) {
    if (!text.starts_with(prefix)) return false;
    text.remove_prefix(prefix.size());
    return true;
}

}  // namespace

std::optional<StorageType> find_separate_storage(std::string_view name) {
    StorageType type{"", 0, 0, {WeightType::w2, 0, false}, nullptr};
    if (take(name, "W2B")) {
        type.decode = decode_separate<2>;
    } else if (take(name, "W4B")) {
        type.packed.type = WeightType::w4;
        type.decode = decode_separate<4>;
    } else if (take(name, "W8B")) {
        type.packed.type = WeightType::w8;
        type.decode = decode_separate<8>;
    } else {
        return std::nullopt;
    }
    uint32_t block = 0;
    const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), block);
    if (error != std::errc() || block == 0 || name.front() == '0') return std::nullopt;
    name.remove_prefix(static_cast<size_t>(end - name.data()));
    if (take(name, "-F32")) {
        type.scales = WeightType::f32;
    } else if (take(name, "-F16")) {
        type.scales = WeightType::f16;
    } else if (take(name, "-BF16")) {
        type.scales = WeightType::bf16;
    } else {
        return std::nullopt;
    }
    if (name == "-Z")
        type.zero_points = ZeroPoints::packed;
    else if (name == "-ZF")
        type.zero_points = ZeroPoints::floats;
    else if (!name.empty())
        return std::nullopt;
    type.elements = block;
    type.packed.block = packed_block(block);
    type.packed.has_offsets = type.zero_points != ZeroPoints::absent;
    return type;
}

}  // namespace nybble
