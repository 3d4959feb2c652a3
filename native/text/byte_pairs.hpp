// Byte-pair merging: a word's bytes become tokens, and the pair of neighbours that ranks first is merged until none is
// left. Sennrich, Haddow, Birch: Neural Machine Translation of Rare Words with Subword Units (2016), section 3.2.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace nybble {

struct Merge {
    uint32_t left, right, merged;
};

inline constexpr uint32_t kNoToken = UINT32_MAX;

class BytePairs {
  public:
    // `token_of_byte` may have kNoToken for bytes that no word has. `merges` are in order of rank; of those for one
    // pair the last counts.
    BytePairs(const std::array<uint32_t, 256>& token_of_byte, const std::vector<Merge>& merges);

    // Append the tokens of `word` to `out`. Takes n log n steps for n bytes, whatever they are.
    void encode(const uint8_t* word, size_t bytes, std::vector<uint32_t>& out) const;

  private:
    struct Slot {
        uint32_t left, right, rank, merged;  // empty: merged is kNoToken
    };
    const Slot* find(uint32_t left, uint32_t right) const;
    size_t place_of(uint32_t left, uint32_t right) const;

    std::array<uint32_t, 256> token_of_byte_;
    std::vector<Slot> slots_;  // a power of two of them, at most half full
};

}  // namespace nybble
