#include "text/byte_pairs.hpp"

#include <bit>
#include <functional>
#include <queue>
#include <tuple>

namespace nybble {
namespace {

constexpr uint32_t kNone = UINT32_MAX;

// Tokens of a word under way, linked so that a merge is O(1).
struct Piece {
    uint32_t token, before, after;
};

// A pair that could be merged when it was found. By then it may be gone: `merged` tells.
struct Candidate {
    uint32_t rank, position, merged;
    bool operator>(const Candidate& other) const {
        return std::tie(rank, position) > std::tie(other.rank, other.position);
    }
};

}  // namespace

BytePairs::BytePairs(const std::array<uint32_t, 256>& token_of_byte, const std::vector<Merge>& merges)
    : token_of_byte_(token_of_byte), slots_(std::bit_ceil(2 * merges.size() + 1), Slot{0, 0, 0, kNoToken}) {
    for (size_t rank = 0; rank < merges.size(); ++rank) {
        const Merge& merge = merges[rank];
        slots_[place_of(merge.left, merge.right)] = {merge.left, merge.right, static_cast<uint32_t>(rank),
                                                     merge.merged};
    }
}

// Of the pair, or of the empty slot where it would be.
size_t BytePairs::place_of(uint32_t left, uint32_t right) const {
    const uint64_t key = (uint64_t{left} << 32 | right) * 0x9e3779b97f4a7c15;
    size_t place = (key >> 32) & (slots_.size() - 1);
    while (slots_[place].merged != kNoToken && (slots_[place].left != left || slots_[place].right != right)) {
        place = (place + 1) & (slots_.size() - 1);
    }
    return place;
}

const BytePairs::Slot* BytePairs::find(uint32_t left, uint32_t right) const {
    const Slot& slot = slots_[place_of(left, right)];
    return slot.merged == kNoToken ? nullptr : &slot;
}

void BytePairs::encode(const uint8_t* word, size_t bytes, std::vector<uint32_t>& out) const {
    std::vector<Piece> pieces;
    pieces.reserve(bytes);
    for (size_t i = 0; i < bytes; ++i) {
        const uint32_t token = token_of_byte_[word[i]];
        if (token == kNoToken) continue;
        const auto position = static_cast<uint32_t>(pieces.size());
        pieces.push_back({token, position == 0 ? kNone : position - 1, position + 1});
    }
    if (pieces.empty()) return;
    pieces.back().after = kNone;

    std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> candidates;
    const auto consider = [&](uint32_t position) {
        const Piece& piece = pieces[position];
        if (piece.after == kNone) return;
        const Slot* slot = find(piece.token, pieces[piece.after].token);
        if (slot != nullptr) candidates.push({slot->rank, position, slot->merged});
    };
    for (uint32_t position = 0; position < pieces.size(); ++position) consider(position);
    while (!candidates.empty()) {
        const Candidate best = candidates.top();
        candidates.pop();
        Piece& piece = pieces[best.position];
        if (piece.token == kNoToken || piece.after == kNone) continue;
        Piece& right = pieces[piece.after];
        const Slot* slot = find(piece.token, right.token);
        if (slot == nullptr || slot->rank != best.rank) continue;
        piece.token = best.merged;
        piece.after = right.after;
        right.token = kNoToken;
        if (piece.after != kNone) pieces[piece.after].before = best.position;
        consider(best.position);
        if (piece.before != kNone) consider(piece.before);
    }
    for (uint32_t position = 0; position != kNone; position = pieces[position].after) {
        out.push_back(pieces[position].token);
    }
}

}  // namespace nybble
