#include <algorithm>
#include <cstring>

#include "bindings/arrays.hpp"
#include "text/byte_pairs.hpp"

using namespace nanobind::literals;

namespace nybble {
namespace {

BytePairs make_byte_pairs(const nb::bytes& token_of_byte, const nb::bytes& merges) {
    std::array<uint32_t, 256> tokens;
    require(token_of_byte.size() == sizeof tokens, "expected a token for each of 256 bytes");
    std::memcpy(tokens.data(), token_of_byte.data(), sizeof tokens);
    // More pieces than a 32-bit rank could count are no vocabulary.
    require(merges.size() % sizeof(Merge) == 0 && merges.size() / sizeof(Merge) < (size_t{1} << 31), "bad merges");
    std::vector<Merge> list(merges.size() / sizeof(Merge));
    // An empty vector has no address, which memcpy may not be given.
    if (!list.empty()) std::memcpy(list.data(), merges.data(), merges.size());
    return {tokens, list};
}

std::vector<uint32_t> encode(const BytePairs& pairs, const std::vector<nb::bytes>& words) {
    std::vector<uint32_t> tokens;
    for (const nb::bytes& word : words) {
        require(word.size() < (size_t{1} << 31), "the word is too long");
        pairs.encode(static_cast<const uint8_t*>(word.data()), word.size(), tokens);
    }
    return tokens;
}

}  // namespace

void bind_text(nb::module_& m) {
    nb::class_<BytePairs>(m, "BytePairs")
        .def(
            "__init__",
            [](BytePairs* self, const nb::bytes& token_of_byte, const nb::bytes& merges) {
                new (self) BytePairs(make_byte_pairs(token_of_byte, merges));
            },
            "token_of_byte"_a, "merges"_a,
            "Little-endian uint32: 256 tokens (2**32 - 1: none), and (left, right, merged) by rank.")
        .def("encode", &encode, "words"_a, "Tokens of the words' bytes, one word after the other.");
}

}  // namespace nybble
