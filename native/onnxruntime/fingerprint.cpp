#include "onnxruntime/fingerprint.hpp"

#include <cstring>
#include <random>

namespace nybble::onnxruntime {
namespace {

constexpr uint64_t kPrime = (uint64_t{1} << 61) - 1;
constexpr size_t kWordBytes = 7;  // so that every word is below the prime

struct Points {
    uint64_t values[2];

    Points() {
        std::random_device random;
        std::uniform_int_distribution<uint64_t> below(1 << 20, kPrime - 1);
        for (uint64_t& value : values) value = below(random);
    }
};

// a · b + c modulo the prime, for a, b and c below 2^62.
uint64_t multiply_add(uint64_t a, uint64_t b, uint64_t c) {
    const auto product = static_cast<unsigned __int128>(a) * b + c;
    const uint64_t sum = static_cast<uint64_t>(product & kPrime) + static_cast<uint64_t>(product >> 61);
    return (sum & kPrime) + (sum >> 61);
}

}  // namespace

void Fingerprint::add_word(uint64_t word) {
    static const Points points;
    for (int i = 0; i < 2; ++i) values_[i] = multiply_add(values_[i], points.values[i], word);
}

void Fingerprint::add(const void* data, size_t bytes) {
    const auto* from = static_cast<const uint8_t*>(data);
    add_word(bytes);
    for (; bytes >= kWordBytes; bytes -= kWordBytes, from += kWordBytes) {
        uint64_t word = 0;
        std::memcpy(&word, from, kWordBytes);
        add_word(word);
    }
    uint64_t word = 0;
    std::memcpy(&word, from, bytes);
    add_word(word);
}

}  // namespace nybble::onnxruntime
