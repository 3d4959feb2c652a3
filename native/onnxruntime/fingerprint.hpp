// Tells contents apart without keeping them.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>

namespace nybble::onnxruntime {

// The bytes as the coefficients of a polynomial modulo 2^61 − 1, evaluated at two points that are drawn at random once
// a process: two contents of L bytes agree with a probability below (L / 2^61)^2, and nobody can prepare a pair that
// does.
class Fingerprint {
  public:
    void add(const void* data, size_t bytes);
    auto operator<=>(const Fingerprint&) const = default;

  private:
    void add_word(uint64_t word);

    uint64_t values_[2] = {1, 1};
};

}  // namespace nybble::onnxruntime
