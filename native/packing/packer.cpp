#include "packing/packer.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>

#include "base/half.hpp"
#include "threads/shared_work.hpp"

namespace nybble {
namespace {

// A scale or offset; false: it is not finite there.
bool store_number(const PackedFormat& format, float number, uint8_t* to) {
    if (format.wide_scales) {
        std::memcpy(to, &number, sizeof number);
        return std::isfinite(number);
    }
    const uint16_t half = float_to_half(number);
    std::memcpy(to, &half, sizeof half);
    return is_finite_half(half);
}

// The codes of a channel, as many at a time as lie side by side: those of fewer than 8 bits share their bytes with
// those behind them.
template <size_t Depth>
void store_codes(const PackedFormat& format, uint8_t* to, const uint8_t* codes) {
    const size_t bits = bits_of(format.type);
    const int flipped = format.flipped_bits();
    for (size_t k = 0; k < format.block; to += kPanelChannels * Depth) {
        uint8_t line[Depth] = {};
        for (size_t shift = 0; shift < 8; shift += bits, k += Depth) {
            for (size_t i = 0; i < Depth; ++i) {
                line[i] = static_cast<uint8_t>(line[i] | (codes[k + i] ^ flipped) << shift);
            }
        }
        std::memcpy(to, line, sizeof line);
    }
}

// Those of a channel that shares bytes with another.
template <size_t Depth>
void store_halves(const PackedFormat& format, uint8_t* block, size_t lane, const uint8_t* codes) {
    const int flipped = format.flipped_bits();
    for (size_t k = 0; k < format.block; k += Depth) {
        const CodePlace place = place_of_code(format, lane, k);
        for (size_t i = 0; i < Depth; ++i) {
            uint8_t& byte = block[place.byte + i];
            byte = static_cast<uint8_t>((byte & ~(15 << place.shift)) | (codes[k + i] ^ flipped) << place.shift);
        }
    }
}

// False: a scale or offset is not finite.
bool store_block(PackedMatrix& matrix, uint8_t* block, size_t lane, const DecodedBlock& decoded) {
    const PackedFormat& format = matrix.format();
    uint8_t* to = block + place_of_code(format, lane, 0).byte;
    switch (format.layout) {
        case Layout::panel32: store_codes<traits_of(Layout::panel32).depth>(format, to, decoded.codes); break;
        case Layout::panel32k8: store_codes<traits_of(Layout::panel32k8).depth>(format, to, decoded.codes); break;
        case Layout::panel32k16:
            if (format.type == WeightType::w4) {
                store_halves<traits_of(Layout::panel32k16).depth>(format, block, lane, decoded.codes);
                break;
            }
            [[fallthrough]];
        case Layout::panel32k32: store_codes<traits_of(Layout::panel32k32).depth>(format, to, decoded.codes); break;
    }
    uint8_t* numbers = block + format.code_bytes() + lane * format.scale_bytes();
    bool finite = store_number(format, decoded.scale, numbers);
    if (format.has_offsets) {
        finite &= store_number(format, decoded.offset, numbers + kPanelChannels * format.scale_bytes());
    }
    return finite;
}

bool pack_quantised_row(PackedMatrix& matrix, size_t channel, const StorageType& type, const StoredRow& stored) {
    uint8_t* panel = matrix.panel(channel / kPanelChannels);
    for (size_t block = 0; block < matrix.blocks(); ++block) {
        DecodedBlock decoded;
        const size_t end = matrix.k() - block * matrix.format().block;
        type.decode(type, stored, block, end, decoded);
        // What a file has behind K is padding of any value.
        if (end < matrix.format().block) std::memset(decoded.codes + end, 0, matrix.format().block - end);
        if (!store_block(matrix, panel + block * matrix.block_bytes(), channel % kPanelChannels, decoded)) return false;
    }
    return true;
}

void pack_float_row(PackedMatrix& matrix, size_t channel, const uint8_t* stored) {
    const size_t width = matrix.format().type == WeightType::f32 ? 4 : 2;
    uint8_t* to = matrix.panel(channel / kPanelChannels) + channel % kPanelChannels * width;
    for (size_t k = 0; k < matrix.k(); ++k) std::memcpy(to + k * matrix.block_bytes(), stored + k * width, width);
}

StoredRow row_of(const StoredRows& stored, size_t k, size_t row) {
    const RowBytes bytes = stored.type->row_bytes(k);
    const StoredRow& first = stored.first;
    return {first.data + row * bytes.data, first.scales == nullptr ? nullptr : first.scales + row * bytes.scales,
            first.zero_points == nullptr ? nullptr : first.zero_points + row * bytes.zero_points};
}

}  // namespace

size_t pack_rows(PackedMatrix& matrix, size_t first_channel, const StoredRows& stored, ThreadPool& threads) {
    const size_t first_panel = first_channel / kPanelChannels;
    const size_t last_panel = (first_channel + stored.rows + kPanelChannels - 1) / kPanelChannels;
    SharedWork work(threads.size());
    std::atomic<size_t> bad_row{kAllFinite};
    threads.run([&](size_t thread) {
        Worker(work, thread).share(last_panel - first_panel, [&](size_t index) {
            const size_t panel = first_panel + index;
            const size_t begin = std::max(panel * kPanelChannels, first_channel);
            const size_t end = std::min((panel + 1) * kPanelChannels, first_channel + stored.rows);
            for (size_t channel = begin; channel < end; ++channel) {
                const size_t row = channel - first_channel;
                const StoredRow from = row_of(stored, matrix.k(), row);
                if (stored.type->decode == nullptr) {
                    pack_float_row(matrix, channel, from.data);
                } else if (!pack_quantised_row(matrix, channel, *stored.type, from)) {
                    size_t seen = bad_row.load();
                    while (row < seen && !bad_row.compare_exchange_weak(seen, row)) {
                    }
                }
            }
        });
    });
    return bad_row.load();
}

}  // namespace nybble
