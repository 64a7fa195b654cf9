// A whole decoder-only transformer, one step at a time: from token ids to the logits of the rows that sample.
//
// The residual stream is kept in float32; what a product reads is rounded to the model's number format first.
#pragma once

#include "attention.h"
#include "linear.h"

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
    bool reserve(const Plan& plan, const DecoderStep& step, int threads) {
        size_t projected = 0, attended = 0;
        for (const LayerParts& layer : layers_) {
            const AttentionShape& a = layer.attention;
            projected = std::max<size_t>(projected, layer.qkv->outputs);
            attended = std::max<size_t>(attended, (size_t)a.query_heads * std::max(a.key_dim, a.value_dim));
            if (!space_.reserve(plan, a, threads)) return false;
        }
        const size_t rows = std::max(plan.step().num_rows(), step.num_samples);
        return residual_.reserve(rows * shape_.hidden) && sampled_.reserve(rows * shape_.hidden) &&
               normed_.reserve(rows * shape_.hidden) && projected_.reserve(rows * projected) &&
               query_.reserve(rows * attended) && attended_.reserve(rows * attended) &&
               sampled_attended_.reserve(rows * attended) && gated_.reserve(rows * shape_.intermediate) &&
               angles_.reserve(rows * max_rotated_ * rotations_.size());
    }

    void run(Member& member, Plan& plan, const DecoderStep& step) {
        const int rows = plan.step().num_rows();
        member.share(rows, [&](long row) { look_up(plan, step, (int)row); });
        for (size_t i = 0; i < layers_.size(); i++) {
            const LayerParts& layer = layers_[i];
            norm(member, layer.input_norm, residual_.data(), rows);
            project(member, layer, rows);
            member.share(rows, [&](long row) { take_in(layer, rotation_of_[i], step, i, row); });
            const AttentionCall<Number> call{
                query_.data(), static_cast<const Stored*>(step.keys[i]), static_cast<const Stored*>(step.values[i]),
                nullptr, attended_.data()};
            attend(member, plan, plan.items(layer.attention.group(), 0), layer.attention, call, space_);
            if (i + 1 < layers_.size()) {
                finish_layer(member, layer, attended_.data(), residual_.data(), rows);
            } else {
                // Behind the last attention nobody looks at rows that don't sample.
                member.share(step.num_samples, [&](long sample) { keep(layer, step, sample); });
                finish_layer(member, layer, sampled_attended_.data(), sampled_.data(), step.num_samples);
            }
        }
        norm(member, last_norm_, sampled_.data(), step.num_samples);
        const auto write = [&](int row, int panel, const Columns& columns) {
            float* to = step.logits + (long)row * shape_.vocabulary;
            each_half(panel, columns, shape_.vocabulary, [&](int first, Vec v, int count) {
                store_some(to + first, v * splat(shape_.logit_scale), count);
            });
        };
        apply<Number>(member, *head_, normed_.data(), shape_.hidden, step.num_samples, write);
    }

    // What follows attention: projection, second norm, gated layers.
    void finish_layer(Member& member, const LayerParts& layer, const Stored* attended, float* residual, int rows) {
        const int width = layer.attention.query_heads * layer.attention.value_dim;
        add(member, *layer.out, layer.out_bias, attended, width, residual, rows);
        norm(member, layer.second_norm, residual, rows);
        gate(member, layer, rows);
        add(member, *layer.down, layer.down_bias, gated_.data(), shape_.intermediate, residual, rows);
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

    void norm(Member& member, const float* weight, const float* residual, int rows) {
        constexpr int kRowsPerTask = 4;
        member.share((rows + kRowsPerTask - 1) / kRowsPerTask, [&](long task) {
            const long end = std::min<long>(rows, (task + 1) * kRowsPerTask);
            for (long row = task * kRowsPerTask; row < end; row++) {
                const float* x = residual + row * shape_.hidden;
                Stored* to = normed_.data() + row * shape_.hidden;
                const float inverse = inverse_norm(x, shape_.hidden);
                for (int i = 0; i < shape_.hidden; i++) to[i] = Number::narrow(x[i] * inverse * weight[i]);
            }
        });
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

    void project(Member& member, const LayerParts& layer, int rows) {
        const int width = layer.qkv->outputs;
        apply<Number>(
            member, *layer.qkv, normed_.data(), shape_.hidden, rows, [&](int row, int panel, const Columns& columns) {
                float* to = projected_.data() + (long)row * width;
                each_half(panel, columns, width, [&](int first, Vec v, int count) {
                    store_some(to + first, biased(v, layer.qkv_bias, first, count), count);
                });
            }
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

    // residual += weights * x, scaled
    void add(
        Member& member, const Weights& weights, const float* bias, const Stored* x, int width, float* residual, int rows
    ) {
        apply<Number>(member, weights, x, width, rows, [&](int row, int panel, const Columns& columns) {
            float* to = residual + (long)row * shape_.hidden;
            each_half(panel, columns, shape_.hidden, [&](int first, Vec v, int count) {
                v = biased(v, bias, first, count) * splat(shape_.residual_scale);
                store_some(to + first, load_some(to + first, count) + v, count);
            });
        });
    }

    void gate(Member& member, const LayerParts& layer, int rows) {
        const int width = shape_.intermediate;
        apply<Number>(
            member, *layer.gate_up, normed_.data(), shape_.hidden, rows,
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
            }
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

    // Kept from step to step.
    AttentionSpace space_;
    Buffer<float> residual_, sampled_, projected_, angles_;
    Buffer<Stored> normed_, query_, attended_, sampled_attended_, gated_;
};

}  // namespace rg
