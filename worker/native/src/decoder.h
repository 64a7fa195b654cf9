// A whole decoder-only transformer, one step at a time: from token ids to the logits of the rows that sample.
//
// The residual stream is kept in float32; what a product reads is rounded to the model's number format first.
#pragma once

#include "attention.h"
#include "linear.h"
#include "lora.h"

namespace rg {

enum Activation { kSilu = 0, kGeluTanh = 1 };

struct DecoderShape {
    int hidden;
    int intermediate;
    int vocabulary;
    int activation;         // see Activation
    float epsilon;          // of all norms
    float embedding_scale;  // of what is looked up
    float residual_scale;   // of what a block adds
    float logit_scale;
};

// Borrowed pointers; null where a layer has no such thing. Weights of norms and biases are float32.
struct LayerParts {
    const float* input_norm;  // [hidden]
    const Weights* qkv;       // queries, keys and values below each other
    const float* qkv_bias;
    const float* query_norm;  // [key_dim], of each head, before the rotation
    const float* key_norm;
    const float* frequencies;  // [rotated / 2]; null: positions don't rotate
    int rotated;               // leading dimensions of a head, first half with second half
    float rotation_scale;
    const Weights* out;
    const float* out_bias;
    const float* second_norm;     // [hidden]
    const Weights* gate_up;       // panels of kLanes gates and the kLanes ups that belong to them
    const float* gate_up_bias;    // gates, then ups
    const Weights* down;
    const float* down_bias;
    AttentionShape attention;
};

// Borrowed for one step.
struct DecoderStep {
    const int32_t* token_ids;  // of each row
    const int32_t* out_slots;
    void* const* keys;  // of each layer [slots, kv_heads, key_dim]
    void* const* values;
    int num_samples;
    const int32_t* sample_rows;
    float* logits;  // [samples, vocabulary]
    const int32_t* row_adapters;     // of each row, which of `adapters`, or -1; null: nobody has one
    const Adapter* const* adapters;
};

template <class Number>
class Decoder {
  public:
    using Stored = typename Number::Stored;

    Decoder(
        const DecoderShape& shape, const LayerParts* layers, int num_layers, const void* embedding,
        const float* last_norm, const Weights* head
    )
        : shape_(shape), layers_(layers, layers + num_layers), embedding_(static_cast<const Stored*>(embedding)),
          last_norm_(last_norm), head_(head) {
        for (const LayerParts& layer : layers_) {
            const auto known = std::find_if(rotations_.begin(), rotations_.end(), [&](const LayerParts* other) {
                return other->frequencies == layer.frequencies && other->rotation_scale == layer.rotation_scale;
            });
            rotation_of_.push_back((int)(known - rotations_.begin()));
            if (known == rotations_.end()) rotations_.push_back(&layer);
            max_rotated_ = std::max(max_rotated_, layer.rotated);
        }
    }

    Decoder(const Decoder&) = delete;
    Decoder& operator=(const Decoder&) = delete;

    // False: out of memory.
    bool run(Plan& plan, const DecoderStep& step, int threads) {
        all_rows_ = AdapterRows();
        sampled_rows_ = AdapterRows();
        for (int row = 0; row < plan.step().num_rows(); row++) all_rows_.add(adapter_of(step, row));
        for (int i = 0; i < step.num_samples; i++) sampled_rows_.add(adapter_of(step, step.sample_rows[i]));
        if (!reserve(plan, step, threads)) return false;
        int phases = 8;  // around the layers
        for (const LayerParts& layer : layers_) {  // before the members come: it changes the plan
            const Items& items = plan.items(layer.attention.group(), items_wanted(layer.attention, threads));
            phases += attention_phases(items) + 8;
        }
        Team::run(threads, phases, [&](Member& member) { run(member, plan, step); });
        return true;
    }

  private:
    // A site of a layer at which adapters have something to add; layer -1: there is nothing.
    struct Place {
        int layer, site;
    };
    static constexpr Place kNowhere{-1, 0};

    static const Adapter* adapter_of(const DecoderStep& step, int row) {
        const int number = step.row_adapters ? step.row_adapters[row] : -1;
        return number < 0 ? nullptr : step.adapters[number];
    }

    bool reserve(const Plan& plan, const DecoderStep& step, int threads) {
        size_t projected = 0, attended = 0;
        for (const LayerParts& layer : layers_) {
            const AttentionShape& a = layer.attention;
            projected = std::max<size_t>(projected, layer.qkv->outputs);
            attended = std::max<size_t>(attended, (size_t)a.query_heads * std::max(a.key_dim, a.value_dim));
            if (!space_.reserve(plan, a, threads)) return false;
        }
        const size_t rows = std::max(plan.step().num_rows(), step.num_samples);
        const int rank = all_rows_.rank();
        return low_.reserve((int)rows, rank) && late_low_.reserve((int)rows, rank) && residual_.reserve(rows * shape_.hidden) && sampled_.reserve(rows * shape_.hidden) &&
               normed_.reserve(rows * shape_.hidden) && projected_.reserve(rows * projected) &&
               query_.reserve(rows * attended) && attended_.reserve(rows * attended) &&
               sampled_attended_.reserve(rows * attended) && gated_.reserve(rows * shape_.intermediate) &&
               angles_.reserve(rows * max_rotated_ * rotations_.size());
    }

    void run(Member& member, Plan& plan, const DecoderStep& step) {
        const int rows = plan.step().num_rows();
        member.share(rows, [&](long row) { look_up(plan, step, (int)row); });
        const int num_layers = (int)layers_.size();
        for (int i = 0; i < num_layers; i++) {
            const LayerParts& layer = layers_[i];
            norm(
                member, layer.input_norm, residual_.data(), all_rows_, i ? Place{i - 1, kSiteDown} : kNowhere,
                Place{i, kSiteQkv}
            );
            project(member, i);
            member.share(rows, [&](long row) { take_in(layer, rotation_of_[i], step, i, row); });
            const AttentionCall<Number> call{
                query_.data(), static_cast<const Stored*>(step.keys[i]), static_cast<const Stored*>(step.values[i]),
                nullptr, attended_.data()};
            attend(member, plan, plan.items(layer.attention.group(), 0), layer.attention, call, space_);
            if (i + 1 < num_layers) {
                finish_layer(member, i, attended_.data(), residual_.data(), all_rows_);
            } else {
                // Behind the last attention nobody looks at rows that don't sample.
                member.share(step.num_samples, [&](long sample) { keep(layer, step, sample); });
                finish_layer(member, i, sampled_attended_.data(), sampled_.data(), sampled_rows_);
            }
        }
        norm(member, last_norm_, sampled_.data(), sampled_rows_, Place{num_layers - 1, kSiteDown}, kNowhere);
        const auto write = [&](int row, int panel, const Columns& columns) {
            float* to = step.logits + (long)row * shape_.vocabulary;
            each_half(panel, columns, shape_.vocabulary, [&](int first, Vec v, int count) {
                store_some(to + first, v * splat(shape_.logit_scale), count);
            });
        };
        apply<Number>(member, *head_, normed_.data(), shape_.hidden, step.num_samples, write);
    }

    // What follows attention: projection, second norm, gated layers.
    void finish_layer(Member& member, int index, const Stored* attended, float* residual, const AdapterRows& rows) {
        const LayerParts& layer = layers_[index];
        const int width = layer.attention.query_heads * layer.attention.value_dim;
        add(member, Place{index, kSiteOut}, *layer.out, layer.out_bias, attended, width, residual, rows);
        norm(member, layer.second_norm, residual, rows, Place{index, kSiteOut}, Place{index, kSiteGateUp});
        gate(member, index, rows);
        const int inner = shape_.intermediate;
        add(member, Place{index, kSiteDown}, *layer.down, layer.down_bias, gated_.data(), inner, residual, rows);
    }

    void look_up(const Plan& plan, const DecoderStep& step, int row) {
        const Stored* from = embedding_ + (long)step.token_ids[row] * shape_.hidden;
        float* to = residual_.data() + (long)row * shape_.hidden;
        for (int i = 0; i < shape_.hidden; i++) to[i] = Number::widen(from[i]) * shape_.embedding_scale;
        for (size_t rotation = 0; rotation < rotations_.size(); rotation++) {
            const LayerParts& layer = *rotations_[rotation];
            if (!layer.frequencies) continue;
            float* angles = angles_of((int)rotation, row);
            const int half = layer.rotated / 2;
            for (int i = 0; i < half; i++) {
                const float angle = (float)plan.position(row) * layer.frequencies[i];
                angles[i] = std::cos(angle) * layer.rotation_scale;
                angles[half + i] = std::sin(angle) * layer.rotation_scale;
            }
        }
    }

    float* angles_of(int rotation, long row) {
        return angles_.data() + (row * (long)rotations_.size() + rotation) * max_rotated_;
    }

    // Norms rows of the residual stream. Before, what adapters still have to add to them at `behind` is added; after
    // that they look at what has been normed, for what they add at `ahead`.
    void norm(
        Member& member, const float* weight, float* residual, const AdapterRows& rows, Place behind, Place ahead
    ) {
        const int num_rows = rows.num_rows();
        const int rows_per_task = rows.tiles().empty() || num_rows < 96 ? 4 : kTileRows;
        member.share((num_rows + rows_per_task - 1) / rows_per_task, [&](long task) {
            const int first = (int)task * rows_per_task;
            const int end = std::min(num_rows, first + rows_per_task);
            if (behind.layer >= 0) add_late(residual, rows, behind, first, end);
            for (long row = first; row < end; row++) {
                const float* x = residual + row * shape_.hidden;
                Stored* to = normed_.data() + row * shape_.hidden;
                const float inverse = inverse_norm(x, shape_.hidden);
                for (int i = 0; i < shape_.hidden; i++) to[i] = Number::narrow(x[i] * inverse * weight[i]);
            }
            if (ahead.layer < 0) return;
            rows.each_tile(first, end, [&](int from, int to, const Adapter& adapter) {
                low_.compute(adapter.at(ahead.layer, ahead.site), normed_.data(), shape_.hidden, from, to);
            });
        });
    }

    // What adapters add to the residual stream, from what they saw beside the product.
    void add_late(float* residual, const AdapterRows& rows, Place place, int first, int end) {
        rows.each_tile(first, end, [&](int from, int to, const Adapter& adapter) {
            const LowRank& part = adapter.at(place.layer, place.site);
            for (int panel = 0; part.exists() && panel < part.up.panels(); panel++) {
                late_low_.raise(part, panel, from, to, [&](int row, const Columns& columns) {
                    float* sum = residual + (long)row * shape_.hidden;
                    each_half(panel, columns, shape_.hidden, [&](int column, Vec v, int count) {
                        v = load_some(sum + column, count) + v * splat(shape_.residual_scale);
                        store_some(sum + column, v, count);
                    });
                });
            }
        });
    }

    // Adds to a tile of a product's results what adapters have for it.
    auto plus(const AdapterRows& rows, Place place) {
        return [this, &rows, place](int first, int end, int panel, float* results) {
            rows.each_tile(first, end, [&](int from, int to, const Adapter& adapter) {
                low_.raise(
                    adapter.at(place.layer, place.site), panel, from, to, [&](int row, const Columns& columns) {
                        float* sum = results + (row - first) * kPanel;
                        store(sum, load(sum) + columns.low);
                        store(sum + kLanes, load(sum + kLanes) + columns.high);
                    }
                );
            });
        };
    }

    // One over the root of the mean square, added up in a fixed order.
    float inverse_norm(const float* x, int size) const {
        Vec squares{};
        int i = 0;
        for (; i + kLanes <= size; i += kLanes) {
            const Vec v = load(x + i);
            squares = squares + v * v;
        }
        float total = sum(squares);
        for (; i < size; i++) total += x[i] * x[i];
        return 1.0f / std::sqrt(total / (float)size + shape_.epsilon);
    }

    void project(Member& member, int index) {
        const LayerParts& layer = layers_[index];
        const int width = layer.qkv->outputs;
        apply<Number>(
            member, *layer.qkv, normed_.data(), shape_.hidden, all_rows_.num_rows(),
            [&](int row, int panel, const Columns& columns) {
                float* to = projected_.data() + (long)row * width;
                each_half(panel, columns, width, [&](int first, Vec v, int count) {
                    store_some(to + first, biased(v, layer.qkv_bias, first, count), count);
                });
            },
            plus(all_rows_, Place{index, kSiteQkv}), beside_nothing()
        );
    }

    // Norms and rotates the heads of one row; its keys and values go to their slot.
    void take_in(const LayerParts& layer, int rotation, const DecoderStep& step, size_t index, long row) {
        const AttentionShape& a = layer.attention;
        float* from = projected_.data() + row * layer.qkv->outputs;
        const float* angles = layer.frequencies ? angles_of(rotation, row) : nullptr;
        const long slot = step.out_slots[row];
        Stored* query = query_.data() + row * a.query_heads * a.key_dim;
        Stored* key = static_cast<Stored*>(step.keys[index]) + slot * a.kv_heads * a.key_dim;
        Stored* value = static_cast<Stored*>(step.values[index]) + slot * a.kv_heads * a.value_dim;
        for (int head = 0; head < a.query_heads; head++, from += a.key_dim)
            turn(layer, layer.query_norm, angles, from, query + head * a.key_dim);
        for (int head = 0; head < a.kv_heads; head++, from += a.key_dim)
            turn(layer, layer.key_norm, angles, from, key + head * a.key_dim);
        for (int i = 0; i < a.kv_heads * a.value_dim; i++) value[i] = Number::narrow(from[i]);
    }

    void turn(const LayerParts& layer, const float* weight, const float* angles, float* x, Stored* to) const {
        const int dim = layer.attention.key_dim;
        if (weight) {
            const float inverse = inverse_norm(x, dim);
            for (int i = 0; i < dim; i++) x[i] = x[i] * inverse * weight[i];
        }
        int first = 0;
        if (angles) {
            const int half = layer.rotated / 2;
            for (int i = 0; i < half; i++) {
                const float cosine = angles[i], sine = angles[half + i];
                to[i] = Number::narrow(x[i] * cosine - x[half + i] * sine);
                to[half + i] = Number::narrow(x[half + i] * cosine + x[i] * sine);
            }
            first = layer.rotated;
        }
        for (int i = first; i < dim; i++) to[i] = Number::narrow(x[i]);
    }

    void keep(const LayerParts& layer, const DecoderStep& step, long sample) {
        const long row = step.sample_rows[sample];
        const long width = (long)layer.attention.query_heads * layer.attention.value_dim;
        std::memcpy(
            sampled_attended_.data() + sample * width, attended_.data() + row * width, width * sizeof(Stored)
        );
        std::memcpy(
            sampled_.data() + sample * shape_.hidden, residual_.data() + row * shape_.hidden,
            shape_.hidden * sizeof(float)
        );
    }

    // residual += weights * x, scaled. What adapters add is only seen to here; the next norm adds it.
    void add(
        Member& member, Place place, const Weights& weights, const float* bias, const Stored* x, int width,
        float* residual, const AdapterRows& rows
    ) {
        const auto look = [&](long task) {
            const AdapterRun& tile = rows.tiles()[task];
            late_low_.compute(tile.adapter->at(place.layer, place.site), x, width, tile.first, tile.end);
        };
        apply<Number>(
            member, weights, x, width, rows.num_rows(),
            [&](int row, int panel, const Columns& columns) {
                float* to = residual + (long)row * shape_.hidden;
                each_half(panel, columns, shape_.hidden, [&](int first, Vec v, int count) {
                    v = biased(v, bias, first, count) * splat(shape_.residual_scale);
                    store_some(to + first, load_some(to + first, count) + v, count);
                });
            },
            [](int, int, int, float*) {}, Beside<decltype(look)>{(long)rows.tiles().size(), look}
        );
    }

    void gate(Member& member, int index, const AdapterRows& rows) {
        const LayerParts& layer = layers_[index];
        const int width = shape_.intermediate;
        apply<Number>(
            member, *layer.gate_up, normed_.data(), shape_.hidden, rows.num_rows(),
            [&](int row, int panel, const Columns& columns) {
                const int first = panel * kLanes;
                const int count = std::min(kLanes, width - first);
                const Vec gate = biased(columns.low, layer.gate_up_bias, first, count);
                const Vec up = biased(columns.high, layer.gate_up_bias, width + first, count);
                const Vec result = activated(gate) * up;
                Stored* to = gated_.data() + (long)row * width + first;
                if (count == kLanes) {
                    Number::store_narrow(to, result);
                } else {
                    for (int i = 0; i < count; i++) to[i] = Number::narrow(result[i]);
                }
            },
            plus(rows, Place{index, kSiteGateUp}), beside_nothing()
        );
    }

    Vec activated(Vec x) const {
        if (shape_.activation == kSilu) return x / (splat(1.0f) + exp(-larger(x, splat(-87.0f))));
        const Vec inner = splat(0.7978845608028654f) * (x + splat(0.044715f) * x * x * x);
        return splat(0.5f) * x * (splat(1.0f) + tanh(inner));
    }

    static Vec biased(Vec v, const float* bias, int first, int count) {
        return bias ? v + load_some(bias + first, count) : v;
    }

    // Both halves of a panel as (first column, numbers, how many of them there are).
    template <class Use>
    static void each_half(int panel, const Columns& columns, int width, const Use& use) {
        const int first = panel * kPanel;
        use(first, columns.low, std::min(kLanes, width - first));
        if (first + kLanes < width) use(first + kLanes, columns.high, std::min(kLanes, width - first - kLanes));
    }

    static Vec load_some(const float* from, int count) {
        if (count == kLanes) return load(from);
        Vec v{};
        for (int i = 0; i < count; i++) v[i] = from[i];
        return v;
    }

    static void store_some(float* to, Vec v, int count) {
        if (count == kLanes) return store(to, v);
        for (int i = 0; i < count; i++) to[i] = v[i];
    }

    const DecoderShape shape_;
    const std::vector<LayerParts> layers_;
    const Stored* embedding_;
    const float* last_norm_;
    const Weights* head_;
    std::vector<const LayerParts*> rotations_;  // a layer of each way to rotate
    std::vector<int> rotation_of_;              // of each layer
    int max_rotated_ = 0;

    AdapterRows all_rows_, sampled_rows_;  // of the step

    // Kept from step to step.
    AttentionSpace space_;
    Buffer<float> residual_, sampled_, projected_, angles_;
    LowRows<Number> low_;       // of what a product is about to read
    LowRows<Number> late_low_;  // of what one has read: the next norm adds what comes of it
    Buffer<Stored> normed_, query_, attended_, sampled_attended_, gated_;
};

}  // namespace rg
