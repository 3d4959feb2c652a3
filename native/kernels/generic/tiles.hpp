// Splitting rows into register tiles, and the epilogue all linears share.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/kernel.hpp"

namespace nybble::NYBBLE_ISA {

inline constexpr size_t kLaneCount = 16;

// Call function.operator()<Rows>(row) over begin..end in as few tiles of at most Most rows as there can be, about
// equal.
template <int Most = kTileRows, typename Function>
inline void for_each_row_tile(size_t begin, size_t end, const Function& function) {
    const auto call = [&]<int Rows>(const auto& self, size_t rows) {
        if constexpr (Rows == 1) {
            function.template operator()<1>(begin);
        } else if (rows == Rows) {
            function.template operator()<Rows>(begin);
        } else {
            self.template operator()<Rows - 1>(self, rows);
        }
    };
    for (size_t tiles = (end - begin + Most - 1) / Most; tiles > 0; --tiles) {
        const size_t rows = (end - begin + tiles - 1) / tiles;
        call.template operator()<Most>(call, rows);
        begin += rows;
    }
}

template <typename Vector, int Rows, int Vectors>
inline void clear(Vector (&values)[Rows][Vectors]) {
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 2
        for (int v = 0; v < Vectors; ++v) values[r][v] = Vector{};
    }
}

// sums += values · each row's scale.
template <int Rows, int Vectors>
[[gnu::always_inline]] inline void add_scaled(Floats (&sums)[Rows][Vectors], const Floats (&values)[Rows][Vectors],
                                              const float* scales) {
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 2
        for (int v = 0; v < Vectors; ++v) sums[r][v] = multiply_add(values[r][v], broadcast(scales[r]), sums[r][v]);
    }
}

// Ask for what store_outputs will touch of `vectors` × 16 channels of these rows, which lie pages apart: no hardware
// foresees that. Always inlined: GCC takes a function that only prefetches for one without effect, and drops its calls.
[[gnu::always_inline]] inline void fetch_outputs(const LinearArguments& arguments, size_t channel, int vectors,
                                                 size_t begin, size_t end) {
    for (size_t row = begin; row < end; ++row) {
        for (size_t place = channel; place < channel + static_cast<size_t>(vectors) * kLaneCount; place += kLaneCount) {
            __builtin_prefetch(arguments.output.data + row * arguments.output.stride + place, 1);
            if (arguments.residual.data != nullptr) {
                __builtin_prefetch(arguments.residual.data + row * arguments.residual.stride + place);
            }
        }
    }
}

// (+ bias) (+ residual), then store the lanes that are real channels.
inline void store_outputs(const LinearArguments& arguments, size_t row, size_t channel, Floats value) {
    const size_t n = arguments.weights->n();
    if (channel >= n) return;
    float* to = arguments.output.data + row * arguments.output.stride + channel;
    const float* residual = arguments.residual.data;
    if (residual != nullptr) residual += row * arguments.residual.stride + channel;
    if (n - channel >= kLaneCount) {
        if (arguments.bias != nullptr) value = add(value, load(arguments.bias + channel));
        if (residual != nullptr) value = add(value, load(residual));
        store(to, value);
    } else {
        const size_t count = n - channel;
        if (arguments.bias != nullptr) value = add(value, load_first(arguments.bias + channel, count));
        if (residual != nullptr) value = add(value, load_first(residual, count));
        store_first(to, value, count);
    }
}

}  // namespace nybble::NYBBLE_ISA
