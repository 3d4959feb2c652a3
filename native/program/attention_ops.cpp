// The ops that write and read the KV cache.
#include <algorithm>
#include <atomic>
#include <utility>

#include "program/ops.hpp"
#include "program/writing_op.hpp"

namespace nybble {
namespace {

class RotateAppend final : public WritingOp {
  public:
    RotateAppend(std::string label, size_t layer, View query, View key, View value, View output, size_t head_dim,
                 HeadNorms norms)
        : WritingOp(std::move(label), output),
          layer_(layer),
          query_(query),
          key_(key),
          value_(value),
          head_dim_(head_dim),
          norms_(std::move(norms)) {}
    size_t scratch_bytes() const override { return 2 * (head_dim_ + 16) * sizeof(float); }
    bool is_brief(size_t rows) const override { return are_brief(rows, query_.width + key_.width + value_.width); }
    void run(Turn& turn) const override {
        const FloatRows query = turn.floats(query_), key = turn.floats(key_), value = turn.floats(value_);
        const FloatRows output = turn.floats(output_);
        turn.share(turn.step.rows, [&](size_t row) {
            for (size_t at = 0; at < query_.width; at += head_dim_) {
                turn_head(turn, row, query.data + row * query.stride + at, norms_.query,
                          output.data + row * output.stride + at);
            }
            const Span& span = turn.step.spans[turn.step.span_of_row[row]];
            const size_t position = turn.step.position_of(row);
            float* turned = reinterpret_cast<float*>(turn.scratch) + head_dim_ + 16;
            for (size_t head = 0; head < key_.width / head_dim_; ++head) {
                turn_head(turn, row, key.data + row * key.stride + head * head_dim_, norms_.key, turned);
                turn.kernels.append({turned, value.data + row * value.stride + head * head_dim_,
                                     span.cache->block_of(layer_, head, position), position % kBlockPositions,
                                     span.cache->block()});
            }
        });
    }

    bool appended_finite(const Step& step) const override {
        for (size_t row = 0; row < step.rows; ++row) {
            const KVCache& cache = *step.spans[step.span_of_row[row]].cache;
            for (size_t head = 0; head < cache.kv_heads(); ++head) {
                if (!cache.is_finite(layer_, head, step.position_of(row))) return false;
            }
        }
        return true;
    }

  private:
    void turn_head(Turn& turn, size_t row, const float* head, const std::vector<float>& norm, float* to) const {
        if (!norm.empty()) {
            auto* normed = reinterpret_cast<float*>(turn.scratch);
            turn.kernels.rms_norm({head, norm.data(), normed, head_dim_, head_dim_, norms_.epsilon});
            head = normed;
        }
        const size_t angles = row * (head_dim_ / 2);
        turn.kernels.rotate({head, to, turn.step.cosines.data() + angles, turn.step.sines.data() + angles, head_dim_});
    }

    size_t layer_;
    View query_, key_, value_;
    size_t head_dim_;
    HeadNorms norms_;
};

class Attention final : public WritingOp {
  public:
    Attention(std::string label, size_t layer, View query, View output, size_t heads, size_t kv_heads, size_t head_dim,
              float scale)
        : WritingOp(std::move(label), output),
          layer_(layer),
          query_(query),
          kv_heads_(kv_heads),
          group_(heads / kv_heads),
          head_dim_(head_dim),
          scale_(scale),
          tile_positions_(std::max<size_t>(1, kRowsPerTile / group_)) {}
    // The same on every instruction set.
    size_t scratch_bytes() const override {
        return row_kernels(Isa::portable).attention_scratch_bytes(round_up(head_dim_, 16), tile_positions_ * group_);
    }
    SharedNeeds shared_needs(const Step& step) const override {
        const std::vector<Tile> tiles = tiles_of(step);
        if (tiles.empty()) return {};
        const size_t states = tiles.back().first_state + tiles.back().states(kv_heads_);
        return {tiles.size() * kv_heads_, states * sizeof(float)};
    }
    void run(Turn& turn) const override {
        const std::vector<Tile> tiles = tiles_of(turn.step);
        size_t tasks = 0;
        for (const Tile& tile : tiles) tasks += tile.parts * kv_heads_;
        turn.share(tasks, [&](size_t task) {
            size_t index = 0;
            for (; task >= tiles[index].parts * kv_heads_; ++index) task -= tiles[index].parts * kv_heads_;
            attend(turn, tiles[index], index, task / tiles[index].parts, task % tiles[index].parts);
        });
    }

  private:
    static constexpr size_t kRowsPerTile = 96;

    // Successive positions of a span.
    struct Tile {
        const Span* span;
        size_t first;
        size_t positions;
        size_t parts;        // chunks of the context that are tasks of their own; 1: a task does all of them
        size_t part_floats;  // that the state of a part takes
        size_t first_state;  // float of the shared memory
        size_t states(size_t kv_heads) const { return parts == 1 ? 0 : kv_heads * parts * part_floats; }
    };

    // The tiles of a long span are tasks enough, and those that see more positions take longer: they come first. The
    // context of a short span is divided.
    std::vector<Tile> tiles_of(const Step& step) const {
        const RowKernels& kernels = row_kernels(Isa::portable);  // the sizes are the same on every instruction set
        std::vector<Tile> tiles;
        size_t state = 0;
        for (const Span& span : step.spans) {
            for (size_t end = span.rows; end > 0;) {
                const size_t begin = (end - 1) / tile_positions_ * tile_positions_, positions = end - begin;
                const bool is_divided = span.rows <= tile_positions_;
                const size_t parts = is_divided ? chunks_of(span.first_position + span.rows) : 1;
                tiles.push_back({&span, begin, positions, parts,
                                 kernels.attention_state_floats(round_up(head_dim_, 16), positions * group_), state});
                state += tiles.back().states(kv_heads_);
                end = begin;
            }
        }
        return tiles;
    }

    void attend(Turn& turn, const Tile& tile, size_t index, size_t kv_head, size_t part) const {
        const KVCache& cache = *tile.span->cache;
        const FloatRows query = turn.floats(query_), output = turn.floats(output_);
        const size_t row = tile.span->first_row + tile.first, first_feature = kv_head * group_ * head_dim_;
        const AttentionArguments arguments{cache.block_of(layer_, kv_head, 0),
                                           cache.block_stride(),
                                           cache.block(),
                                           group_,
                                           tile.span->first_position + tile.first,
                                           tile.positions,
                                           query.data + row * query.stride + first_feature,
                                           query.stride,
                                           output.data + row * output.stride + first_feature,
                                           output.stride,
                                           scale_};
        if (tile.parts == 1) return turn.kernels.attention(arguments, turn.scratch);
        auto* states = reinterpret_cast<float*>(turn.step.shared) + tile.first_state;
        states += kv_head * tile.parts * tile.part_floats;
        turn.kernels.attend_to_chunk(arguments, part, states + part * tile.part_floats, turn.scratch);
        // Whoever comes last merges, and leaves the counter as it was.
        std::atomic<uint32_t>& arrived = turn.step.counters[index * kv_heads_ + kv_head];
        if (arrived.fetch_add(1, std::memory_order_acq_rel) + 1 < tile.parts) return;
        arrived.store(0, std::memory_order_relaxed);
        turn.kernels.merge_chunks(arguments, states);
    }

    size_t layer_;
    View query_;
    size_t kv_heads_, group_;
    size_t head_dim_;
    float scale_;
    size_t tile_positions_;
};

}  // namespace

std::unique_ptr<Op> make_rotate_append(std::string label, size_t layer, View query, View key, View value, View output,
                                       size_t head_dim, HeadNorms norms) {
    return std::make_unique<RotateAppend>(std::move(label), layer, query, key, value, output, head_dim,
                                          std::move(norms));
}
std::unique_ptr<Op> make_attention(std::string label, size_t layer, View query, View output, size_t heads,
                                   size_t kv_heads, size_t head_dim, float scale) {
    return std::make_unique<Attention>(std::move(label), layer, query, output, heads, kv_heads, head_dim, scale);
}

}  // namespace nybble
