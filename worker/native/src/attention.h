// Attention over slots: items of a plan, block after block, with a running maximum and sum for each row.
#pragma once

#include "buffer.h"
#include "panels.h"
#include "plan.h"
#include "team.h"

namespace rg {

// How one layer attends, see worker.attention.backend.AttentionShape.
struct AttentionShape {
    int query_heads;
    int kv_heads;
    int key_dim;
    int value_dim;
    float scaling;
    int window;     // 0: none
    float softcap;  // 0: none

    int group() const { return query_heads / kv_heads; }
};

// What a row's query head has found in one span: sum and maximum of its weights, and its values, weighted.
struct SpanState {
    float maximum;
    float sum;
    float pad[14];

    float* values() { return reinterpret_cast<float*>(this + 1); }
    const float* values() const { return reinterpret_cast<const float*>(this + 1); }

    static long words(int value_dim) { return 16 + (value_dim + kPanel - 1) / kPanel * kPanel; }
};

// Query, keys and values of a layer, and where its results go. Rows and slots are contiguous.
template <class Number>
struct AttentionCall {
    using Stored = typename Number::Stored;

    const Stored* query;  // [rows, query_heads, key_dim]
    const Stored* keys;   // [slots, kv_heads, key_dim]
    const Stored* values;  // [slots, kv_heads, value_dim]
    const float* sinks;   // [query_heads] or null
    Stored* out;          // [rows, query_heads, value_dim]
};

// Items of so few rows read more than they compute: their threads take all heads of a slot at once.
constexpr int kFewRows = 4;
constexpr int kAhead = 32;  // keys; what is asked for is needed when so many have been packed

// What one thread needs to work on an item.
struct AttentionScratch {
    Buffer<uint32_t> query, key_panels, value_panels, weights;
    Buffer<float> scores, values, maxima, sums, corrections;

    bool reserve(const AttentionShape& shape) {
        const size_t rows = std::max({kItemRows, shape.group(), kFewRows * shape.query_heads});
        const size_t value_words = SpanState::words(shape.value_dim);
        const size_t heads = shape.kv_heads;
        return query.reserve(rows * shape.key_dim) && key_panels.reserve(heads * kBlock * shape.key_dim) &&
               value_panels.reserve(heads * kBlock * value_words) && weights.reserve(rows * kBlock) &&
               scores.reserve(rows * kBlock) && values.reserve(rows * value_words) && maxima.reserve(rows) &&
               sums.reserve(rows) && corrections.reserve(rows);
    }
};

template <class Number>
class ItemAttention {
  public:
    using Stored = typename Number::Stored;

    ItemAttention(
        const Plan& plan, const Items& items, const AttentionShape& shape, const AttentionCall<Number>& call,
        float* states, AttentionScratch& scratch
    )
        : plan_(plan), items_(items), shape_(shape), call_(call), states_(states), scratch_(scratch),
          state_words_(SpanState::words(shape.value_dim)), value_words_(state_words_ - 16) {}

    // Attends with the heads [first_head, end_head): keys and values of a slot lie side by side for all of them.
    void run(const Item& item, int first_head, int end_head) {
        item_ = &item;
        first_head_ = first_head;
        num_heads_ = end_head - first_head;
        rows_ = item.num_rows * shape_.group();
        gather_query();
        begin(item.first_block / kSpanBlocks, item.first_block % kSpanBlocks != 0);
        const int32_t* slots = plan_.step().slots(item.sequence);
        const int num_keys = std::min(plan_.step().num_keys(item.sequence), item.last_position + 1);
        for (int block = item.first_block; block < item.end_block; block++) {
            if (block % kSpanBlocks == 0 && block != item.first_block) {
                end(block / kSpanBlocks - 1);
                begin(block / kSpanBlocks, false);
            }
            const int first = block * kBlock;
            const int keys = std::min(kBlock, num_keys - first);
            if (keys <= 0 || !is_seen(first, keys)) continue;
            const int reads = std::min(item.end_block * kBlock, num_keys) - first;
            pack_keys(slots + first, keys, reads);
            for (head_ = 0; head_ < num_heads_; head_++) {
                score(keys);
                for (int i = 0; i < rows_; i++) weigh(i, first, keys);
            }
            pack_values(slots + first, keys, reads);
            for (head_ = 0; head_ < num_heads_; head_++) add_values(keys);
        }
        end((item.end_block - 1) / kSpanBlocks);
    }

  private:
    int row_of(int i) const { return items_.rows[item_->first_row + i / shape_.group()]; }
    // Rows of all heads: those of the first one, then those of the second.
    int all_rows() const { return num_heads_ * rows_; }
    int state_of(int i) const { return head_ * rows_ + i; }
    int query_head(int state) const {
        return (first_head_ + state / rows_) * shape_.group() + state % rows_ % shape_.group();
    }

    // Rows of one item may end in different spans.
    bool has(int i, int span) const { return span < plan_.num_spans(row_of(i % rows_)); }

    SpanState* state(int i, int span) const {
        const long index = (plan_.first_span(row_of(i % rows_)) + span) * shape_.query_heads + query_head(i);
        return reinterpret_cast<SpanState*>(states_ + index * state_words_);
    }

    void gather_query() {
        const long words = shape_.key_dim / Number::kPerWord;
        for (int i = 0; i < all_rows(); i++)
            std::memcpy(
                scratch_.query.data() + i * words,
                call_.query + ((long)row_of(i % rows_) * shape_.query_heads + query_head(i)) * shape_.key_dim,
                4 * words
            );
    }

    void begin(int span, bool goes_on) {
        for (int i = 0; i < all_rows(); i++) {
            float* values = scratch_.values.data() + i * value_words_;
            if (goes_on && has(i, span)) {
                const SpanState* earlier = state(i, span);
                scratch_.maxima.data()[i] = earlier->maximum;
                scratch_.sums.data()[i] = earlier->sum;
                std::memcpy(values, earlier->values(), 4 * value_words_);
            } else {
                scratch_.maxima.data()[i] = -INFINITY;
                scratch_.sums.data()[i] = 0;
                std::memset(values, 0, 4 * value_words_);
            }
        }
    }

    void end(int span) {
        for (int i = 0; i < all_rows(); i++) {
            if (!has(i, span)) continue;
            SpanState* found = state(i, span);
            found->maximum = scratch_.maxima.data()[i];
            found->sum = scratch_.sums.data()[i];
            std::memcpy(found->values(), scratch_.values.data() + i * value_words_, 4 * value_words_);
        }
    }

    // Whether any row sees any of the keys at positions [first, first + keys): those behind a window see none.
    bool is_seen(int first, int keys) const {
        if (shape_.window == 0) return true;
        for (int i = 0; i < item_->num_rows; i++) {
            const int position = plan_.position(items_.rows[item_->first_row + i]);
            if (position >= first && position - shape_.window < first + keys - 1) return true;
        }
        return false;
    }

    // Slots lie anywhere, and the processor cannot guess where: those that are read soon are asked for.
    template <class Row>
    void prefetch(const Row& row_of_slot, int dim, const int32_t* slots, int at, int reads) const {
        const int end = std::min(at + kAhead + kLanes, reads);
        const long bytes = (long)num_heads_ * dim * sizeof(Stored);
        for (int i = at + kAhead; i < end; i++) {
            const char* row = (const char*)row_of_slot(slots[i]);
            for (long byte = 0; byte < bytes; byte += 64) __builtin_prefetch(row + byte);
        }
    }

    const Stored* key_row(int slot) const {
        return call_.keys + ((long)slot * shape_.kv_heads + first_head_) * shape_.key_dim;
    }

    const Stored* value_row(int slot) const {
        return call_.values + ((long)slot * shape_.kv_heads + first_head_) * shape_.value_dim;
    }

    int key_steps() const { return shape_.key_dim / Number::kPerWord; }

    uint32_t* key_panels(int head) { return scratch_.key_panels.data() + (long)head * kBlock * key_steps(); }

    uint32_t* value_panels(int head) {
        return scratch_.value_panels.data() + (long)head * (kBlock / Number::kPerWord) * value_words_;
    }

    // `reads`: how many of `slots` this item reads from here on.
    void pack_keys(const int32_t* slots, int keys, int reads) {
        const uint32_t* rows[kLanes];
        for (int first = 0; first < keys || first % kPanel != 0; first += kLanes) {
            prefetch([&](int slot) { return key_row(slot); }, shape_.key_dim, slots, first, reads);
            for (int i = 0; i < kLanes; i++)
                rows[i] = first + i < keys ? reinterpret_cast<const uint32_t*>(key_row(slots[first + i])) : nullptr;
            const long place = (long)(first / kPanel) * key_steps() * kPanel + first % kPanel;
            for (int head = 0; head < num_heads_; head++)
                pack_columns(rows, (long)head * key_steps(), key_steps(), key_panels(head) + place);
        }
    }

    void pack_values(const int32_t* slots, int keys, int reads) {
        const int steps = value_steps(keys);
        for (int step = 0; step < steps; step++) {
            const int first = step * Number::kPerWord;
            if (first % kLanes == 0)
                prefetch([&](int slot) { return value_row(slot); }, shape_.value_dim, slots, first, reads);
            for (int head = 0; head < num_heads_; head++) {
                const Stored* rows[Number::kPerWord];
                for (int i = 0; i < Number::kPerWord; i++)
                    rows[i] = first + i < keys ? value_row(slots[first + i]) + head * shape_.value_dim : nullptr;
                pack_some_values<Number>(rows, shape_.value_dim, value_panels(head), steps, step);
            }
        }
    }

    static int value_steps(int keys) { return (keys + Number::kPerWord - 1) / Number::kPerWord; }

    float* scores(int i) { return scratch_.scores.data() + (long)state_of(i) * kBlock; }

    uint32_t* weights(int i) { return scratch_.weights.data() + (long)state_of(i) * (kBlock / Number::kPerWord); }

    void score(int keys) {
        const int steps = key_steps();
        for (int panel = 0; panel * kPanel < keys; panel++) {
            for_tiles([&](int row, int rows) {
                multiply_rows<Number>(
                    rows, scratch_.query.data() + (long)state_of(row) * steps, steps,
                    key_panels(head_) + (long)panel * steps * kPanel, steps, scores(row) + panel * kPanel, kBlock
                );
            });
        }
    }

    // Turns a row's scores into weights relative to its maximum so far, and corrects what it had before.
    void weigh(int i, int first, int keys) {
        float* scores = this->scores(i);
        auto* weights = reinterpret_cast<Stored*>(this->weights(i));
        float& correction = scratch_.corrections.data()[state_of(i)];
        const int vectors = (keys + kLanes - 1) / kLanes;
        const float scaling = shape_.softcap == 0 ? shape_.scaling : 1;
        if (shape_.softcap != 0) cap(scores, vectors);
        hide(scores, vectors, plan_.position(row_of(i)) - first, keys);
        Vec largest = splat(-INFINITY);
        for (int v = 0; v < vectors; v++) largest = larger(largest, load(scores + v * kLanes));
        const float maximum = scratch_.maxima.data()[state_of(i)];
        const float now = std::max(maximum, rg::maximum(largest) * scaling);
        if (now == -INFINITY) {  // it sees nothing yet
            correction = 1;
            std::memset((void*)weights, 0, sizeof(Stored) * vectors * kLanes);
            return;
        }
        Vec total{};
        for (int v = 0; v < vectors; v++) {
            const Vec weight = exp(load(scores + v * kLanes) * splat(scaling) - splat(now));
            total = total + weight;
            Number::store_narrow(weights + v * kLanes, weight);
        }
        correction = maximum == now ? 1 : exp(splat(maximum - now))[0];
        float& sum = scratch_.sums.data()[state_of(i)];
        sum = sum * correction + rg::sum(total);
        scratch_.maxima.data()[state_of(i)] = now;
    }

    void cap(float* scores, int vectors) const {
        for (int v = 0; v < vectors; v++) {
            const Vec x = load(scores + v * kLanes) * splat(shape_.scaling / shape_.softcap);
            store(scores + v * kLanes, splat(shape_.softcap) * tanh(x));
        }
    }

    // Takes the keys out that a row at `position`, counted from the block's first key, doesn't see.
    void hide(float* scores, int vectors, int position, int keys) const {
        const int end = std::min(keys, position + 1);
        const int begin = shape_.window == 0 ? 0 : position - shape_.window + 1;
        if (begin <= 0 && end == vectors * kLanes) return;
        const VecInt lanes = lane_numbers();
        for (int v = 0; v < vectors; v++) {
            if (v * kLanes >= begin && (v + 1) * kLanes <= end) continue;
            const VecInt at = lanes + v * kLanes;
            store(
                scores + v * kLanes,
                select((at >= begin) & (at < end), load(scores + v * kLanes), splat(-INFINITY))
            );
        }
    }

    void add_values(int keys) {
        constexpr long kStride = kBlock / Number::kPerWord;
        const int steps = value_steps(keys);
        for (int panel = 0; panel * kPanel < shape_.value_dim; panel++) {
            for_tiles([&](int row, int rows) {
                multiply_rows<Number>(
                    rows, weights(row), kStride, value_panels(head_) + (long)panel * steps * kPanel, steps,
                    [&](int i, const Columns& columns) {
                        float* values = scratch_.values.data() + state_of(row + i) * value_words_ + panel * kPanel;
                        const Vec correction = splat(scratch_.corrections.data()[state_of(row + i)]);
                        store(values, load(values) * correction + columns.low);
                        store(values + kLanes, load(values + kLanes) * correction + columns.high);
                    }
                );
            });
        }
    }

    template <class Use>
    void for_tiles(const Use& use) const {
        const int tiles = (rows_ + kTileRows - 1) / kTileRows;
        const int rows = (rows_ + tiles - 1) / tiles;
        for (int row = 0; row < rows_; row += rows) use(row, std::min(rows, rows_ - row));
    }

    const Plan& plan_;
    const Items& items_;
    const AttentionShape& shape_;
    const AttentionCall<Number>& call_;
    float* states_;
    AttentionScratch& scratch_;
    const long state_words_, value_words_;
    const Item* item_ = nullptr;
    int first_head_ = 0, num_heads_ = 0;
    int head_ = 0;  // the one at work, counted from the first
    int rows_ = 0;  // of one head
};

// Puts the spans of one row together and writes its result.
template <class Number>
void finish_row(
    const Plan& plan, const AttentionShape& shape, const AttentionCall<Number>& call, const float* states, int row
) {
    const long words = SpanState::words(shape.value_dim), value_words = words - 16;
    const int spans = plan.num_spans(row);
    for (int head = 0; head < shape.query_heads; head++) {
        const auto span = [&](int number) {
            const long index = (plan.first_span(row) + number) * shape.query_heads + head;
            return reinterpret_cast<const SpanState*>(states + index * words);
        };
        float maximum = call.sinks ? call.sinks[head] : -INFINITY;
        for (int i = 0; i < spans; i++) maximum = std::max(maximum, span(i)->maximum);
        float sum = call.sinks ? exp(splat(call.sinks[head] - maximum))[0] : 0;
        static thread_local std::vector<float> shares;
        shares.resize(spans);
        for (int i = 0; i < spans; i++) {
            shares[i] = exp(splat(span(i)->maximum - maximum))[0];
            sum += span(i)->sum * shares[i];
        }
        const Vec inverse = splat(1.0f / sum);
        auto* out = call.out + ((long)row * shape.query_heads + head) * shape.value_dim;
        for (long first = 0; first < value_words; first += kLanes) {
            Vec total{};
            for (int i = 0; i < spans; i++) total = total + load(span(i)->values() + first) * splat(shares[i]);
            total = total * inverse;
            if (first + kLanes <= shape.value_dim) {
                Number::store_narrow(out + first, total);
            } else {
                for (int lane = 0; first + lane < shape.value_dim; lane++)
                    out[first + lane] = Number::narrow(total[lane]);
            }
        }
    }
}

// What attention needs besides its plan; kept from step to step.
struct AttentionSpace {
    std::vector<AttentionScratch> scratch;  // of each member
    Buffer<float> states;

    bool reserve(const Plan& plan, const AttentionShape& shape, int threads) {
        if ((int)scratch.size() < threads) scratch.resize(threads);
        for (auto& each : scratch)
            if (!each.reserve(shape)) return false;
        return states.reserve((size_t)plan.total_spans() * shape.query_heads * SpanState::words(shape.value_dim));
    }
};

// How many items keep all threads busy to the end.
inline int items_wanted(const AttentionShape& shape, int threads) { return 4 * threads / shape.kv_heads; }

// How often `attend` shares tasks out.
inline int attention_phases(const Items& items) { return (int)items.levels.size() + 1; }

template <class Number>
void attend(
    Member& member, const Plan& plan, const Items& items, const AttentionShape& shape,
    const AttentionCall<Number>& call, AttentionSpace& space
) {
    ItemAttention<Number> work(plan, items, shape, call, space.states.data(), space.scratch[member.number()]);
    for (const auto& level : items.levels) {
        const bool many = (int)level.size() >= member.size();
        member.share((long)level.size() * shape.kv_heads, [&](long task) {
            const Item& item = level[task / shape.kv_heads];
            const int head = (int)(task % shape.kv_heads);
            if (!many || item.num_rows > kFewRows)
                work.run(item, head, head + 1);
            else if (head == 0)
                work.run(item, 0, shape.kv_heads);
        });
    }
    constexpr int kRowsPerTask = 8;
    const int rows = plan.step().num_rows();
    member.share((rows + kRowsPerTask - 1) / kRowsPerTask, [&](long task) {
        const int end = std::min(rows, (int)(task + 1) * kRowsPerTask);
        for (int row = (int)task * kRowsPerTask; row < end; row++) finish_row(plan, shape, call, space.states.data(), row);
    });
}

}  // namespace rg
