#include "packing/storage_blocks.hpp"

#include <cstring>
#include <string>

#include "base/half.hpp"

namespace nybble {
namespace {

float read_half(const uint8_t* from) {
    uint16_t bits;
    std::memcpy(&bits, from, sizeof bits);
    return half_to_float(bits);
}

void decode_q4_0(const uint8_t* stored, size_t, size_t, DecodedBlock& out) {
    out.scale = read_half(stored);
    for (int i = 0; i < 16; ++i) {
        out.codes[i] = stored[2 + i] & 15;
        out.codes[i + 16] = stored[2 + i] >> 4;
    }
}

void decode_q4_1(const uint8_t* stored, size_t, size_t, DecodedBlock& out) {
    out.scale = read_half(stored);
    out.offset = read_half(stored + 2);
    for (int i = 0; i < 16; ++i) {
        out.codes[i] = stored[4 + i] & 15;
        out.codes[i + 16] = stored[4 + i] >> 4;
    }
}

// The fifth bit of element i is bit i of a 32-bit mask.
void decode_five_bits(const uint8_t* mask_bytes, const uint8_t* nibbles, uint8_t bias, uint8_t* codes) {
    uint32_t mask;
    std::memcpy(&mask, mask_bytes, sizeof mask);
    for (int i = 0; i < 16; ++i) {
        codes[i] = static_cast<uint8_t>((nibbles[i] & 15) + ((mask >> i) & 1u) * 16 + bias);
        codes[i + 16] = static_cast<uint8_t>((nibbles[i] >> 4) + ((mask >> (i + 16)) & 1u) * 16 + bias);
    }
}

void decode_q5_0(const uint8_t* stored, size_t, size_t, DecodedBlock& out) {
    out.scale = read_half(stored);
    decode_five_bits(stored + 2, stored + 6, 128 - 16, out.codes);
}

void decode_q5_1(const uint8_t* stored, size_t, size_t, DecodedBlock& out) {
    out.scale = read_half(stored);
    out.offset = read_half(stored + 2);
    decode_five_bits(stored + 4, stored + 8, 0, out.codes);
}

void decode_q8_0(const uint8_t* stored, size_t, size_t, DecodedBlock& out) {
    out.scale = read_half(stored);
    for (int i = 0; i < 32; ++i) out.codes[i] = static_cast<uint8_t>(stored[2 + i] ^ 0x80);
}

// Q4_K and Q5_K keep eight 6-bit scales and minima in 12 bytes: the first four pairs in the low six bits of bytes 0-7,
// the last four in nibbles of bytes 8-11 with their two high bits in the high bits of bytes 0-7.
void decode_six_bit_scales(const uint8_t* stored, size_t index, DecodedBlock& out) {
    const uint8_t* packed = stored + 4;
    uint8_t scale, minimum;
    if (index < 4) {
        scale = packed[index] & 63;
        minimum = packed[index + 4] & 63;
    } else {
        scale = static_cast<uint8_t>((packed[index + 4] & 15) | ((packed[index - 4] >> 6) << 4));
        minimum = static_cast<uint8_t>((packed[index + 4] >> 4) | ((packed[index] >> 6) << 4));
    }
    out.scale = read_half(stored) * static_cast<float>(scale);
    out.offset = -read_half(stored + 2) * static_cast<float>(minimum);
}

void decode_q4_k(const uint8_t* stored, size_t index, size_t, DecodedBlock& out) {
    const uint8_t* nibbles = stored + 16 + index / 2 * 32;
    const int shift = index % 2 == 0 ? 0 : 4;
    for (int i = 0; i < 32; ++i) out.codes[i] = (nibbles[i] >> shift) & 15;
    decode_six_bit_scales(stored, index, out);
}

void decode_q5_k(const uint8_t* stored, size_t index, size_t, DecodedBlock& out) {
    const uint8_t* fifth_bits = stored + 16;
    const uint8_t* nibbles = stored + 48 + index / 2 * 32;
    const int shift = index % 2 == 0 ? 0 : 4;
    for (int i = 0; i < 32; ++i) {
        out.codes[i] = static_cast<uint8_t>(((nibbles[i] >> shift) & 15) + ((fifth_bits[i] >> index) & 1) * 16);
    }
    decode_six_bit_scales(stored, index, out);
}

// 256 elements as two halves of 128: low nibbles in ql, two high bits in qh, sixteen int8 scales, one fp16.
void decode_q6_k(const uint8_t* stored, size_t index, size_t, DecodedBlock& out) {
    const uint8_t* low = stored + index / 8 * 64;
    const uint8_t* high = stored + 128 + index / 8 * 32;
    const size_t quarter = index % 8 / 2;  // which 32 of the half's 128
    const size_t begin = index % 2 * 16;   // which 16 of those 32
    const uint8_t* nibbles = low + quarter % 2 * 32;
    const int nibble_shift = quarter < 2 ? 0 : 4;
    for (size_t i = 0; i < 16; ++i) {
        const int low_bits = (nibbles[begin + i] >> nibble_shift) & 15;
        const int high_bits = (high[begin + i] >> (2 * quarter)) & 3;
        out.codes[i] = static_cast<uint8_t>(low_bits + high_bits * 16 - 32 + 128);
    }
    const auto scale = static_cast<int8_t>(stored[192 + index]);
    out.scale = read_half(stored + 208) * static_cast<float>(scale);
}

// Scale, offset if there is one, then the codes: of those that share a byte the earlier in the lower bits.
template <size_t Bits, bool HasOffset>
void decode_plain(const uint8_t* stored, size_t, size_t block, DecodedBlock& out) {
    out.scale = read_half(stored);
    out.offset = HasOffset ? read_half(stored + 2) : 0.0f;
    const uint8_t* codes = stored + (HasOffset ? 4 : 2);
    for (size_t i = 0; i < block; ++i) {
        constexpr size_t per_byte = 8 / Bits;
        out.codes[i] = static_cast<uint8_t>((codes[i / per_byte] >> (i % per_byte * Bits)) & ((1 << Bits) - 1));
    }
}

// A decoder of one stored block as that of the row it lies in.
template <auto Decode>
void within_row(const StorageType& type, const StoredRow& row, size_t index, size_t, DecodedBlock& out) {
    const size_t block = type.packed.block, packed_per_stored = type.elements / block;
    Decode(row.data + index / packed_per_stored * type.bytes, index % packed_per_stored, block, out);
}

constexpr PackedFormat kSymmetric4{WeightType::w4, 32, false};
constexpr PackedFormat kAsymmetric4{WeightType::w4, 32, true};
constexpr PackedFormat kSymmetric8{WeightType::w8, 32, false};
constexpr PackedFormat kAsymmetric8{WeightType::w8, 32, true};

constexpr StorageType kGgufTypes[] = {
    {"F32", 1, 4, {WeightType::f32, 1, false}, nullptr},
    {"F16", 1, 2, {WeightType::f16, 1, false}, nullptr},
    {"BF16", 1, 2, {WeightType::bf16, 1, false}, nullptr},
    {"Q4_0", 32, 18, kSymmetric4, within_row<decode_q4_0>},
    {"Q4_1", 32, 20, kAsymmetric4, within_row<decode_q4_1>},
    {"Q5_0", 32, 22, kSymmetric8, within_row<decode_q5_0>},
    {"Q5_1", 32, 24, kAsymmetric8, within_row<decode_q5_1>},
    {"Q8_0", 32, 34, kSymmetric8, within_row<decode_q8_0>},
    {"Q4_K", 256, 144, kAsymmetric4, within_row<decode_q4_k>},
    {"Q5_K", 256, 176, kAsymmetric8, within_row<decode_q5_k>},
    {"Q6_K", 256, 210, {WeightType::w8, 16, false}, within_row<decode_q6_k>},
};

template <size_t Bits, bool HasOffset>
StorageType plain(WeightType type, size_t block) {
    const PackedFormat packed{type, block, HasOffset};
    return {"", block, block * Bits / 8 + (HasOffset ? 4 : 2), packed, within_row<decode_plain<Bits, HasOffset>>};
}

template <bool HasOffset>
std::optional<StorageType> plain(char bits, size_t block) {
    if (bits == '2') return plain<2, HasOffset>(WeightType::w2, block);
    if (bits == '4') return plain<4, HasOffset>(WeightType::w4, block);
    if (bits == '8') return plain<8, HasOffset>(WeightType::w8, block);
    return std::nullopt;
}

}  // namespace

std::optional<StorageType> find_block_storage(std::string_view name) {
    for (const StorageType& type : kGgufTypes) {
        if (type.name == name) return type;
    }
    if (name.size() < 4 || name[0] != 'W' || name[2] != 'B') return std::nullopt;
    const bool has_offset = name.back() == 'A';
    const std::string_view digits = name.substr(3, name.size() - 3 - (has_offset ? 1 : 0));
    for (const size_t block : {16, 32, 64, 128, 256}) {
        if (digits == std::to_string(block))
            return has_offset ? plain<true>(name[1], block) : plain<false>(name[1], block);
    }
    return std::nullopt;
}

}  // namespace nybble
