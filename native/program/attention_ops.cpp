// The ops that write and read the KV cache.
#include <algorithm>
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
                                     span.cache->key(layer_, head, position), span.cache->value(layer_, head, position),
                                     head_dim_});
            }
        });
    }

    bool appended_finite(const Step& step) const override {
        const auto finite = [](uint16_t half) { return (half & 0x7c00u) != 0x7c00u; };
        for (size_t row = 0; row < step.rows; ++row) {
            const KVCache& cache = *step.spans[step.span_of_row[row]].cache;
            for (size_t head = 0; head < cache.kv_heads(); ++head) {
                const uint16_t* key = cache.key(layer_, head, step.position_of(row));
                const uint16_t* value = cache.value(layer_, head, step.position_of(row));
                for (size_t i = 0; i < head_dim_; ++i) {
                    if (!finite(key[i * kBlockPositions]) || !finite(value[i])) return false;
                }
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
    size_t scratch_bytes() const override {
        // The same on every instruction set.
        return row_kernels(Isa::portable).attention_scratch_bytes(round_up(head_dim_, 16), tile_positions_ * group_);
    }
    void run(Turn& turn) const override {
        // Later tiles see more positions and take longer: they are claimed first.
        std::vector<Tile> tiles;
        for (const Span& span : turn.step.spans) {
            for (size_t end = span.rows; end > 0;) {
                const size_t begin = (end - 1) / tile_positions_ * tile_positions_;
                tiles.push_back({&span, begin, end - begin});
                end = begin;
            }
        }
        turn.share(tiles.size() * kv_heads_,
                   [&](size_t task) { attend(turn, tiles[task / kv_heads_], task % kv_heads_); });
    }

  private:
    static constexpr size_t kRowsPerTile = 48;

    struct Tile {
        const Span* span;
        size_t first;
        size_t positions;
    };

    void attend(Turn& turn, const Tile& tile, size_t kv_head) const {
        const KVCache& cache = *tile.span->cache;
        const FloatRows query = turn.floats(query_), output = turn.floats(output_);
        const size_t row = tile.span->first_row + tile.first, first_feature = kv_head * group_ * head_dim_;
        turn.kernels.attention({cache.head(layer_, kv_head), cache.block_stride(), cache.values_offset(), head_dim_,
                                cache.padded_head_dim(), group_, tile.span->first_position + tile.first, tile.positions,
                                query.data + row * query.stride + first_feature, query.stride,
                                output.data + row * output.stride + first_feature, output.stride, scale_},
                               turn.scratch);
    }

    size_t layer_;
    View query_;
    size_t kv_heads_, group_, head_dim_;
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
