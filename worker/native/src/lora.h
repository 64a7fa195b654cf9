// LoRA adapters: what each adds to the products of a decoder, for the rows that run with it.
//
// An adapter adds up (down x) to a product, with a small rank between. `down x` is computed where x is made, or beside
// the product that reads it; `up` is added where the product's result is at hand, or by whoever reads that next. So
// adapters add no phases of their own to a layer. A row's result depends neither on its neighbours nor on their
// adapters; a row without one is computed as if there were none.
#pragma once

#include <vector>

#include "linear.h"

namespace rg {

// The products of a layer, each with all the modules it consists of.
enum Site { kSiteQkv = 0, kSiteOut = 1, kSiteGateUp = 2, kSiteDown = 3, kNumSites = 4 };

// What an adapter has for one site.
struct LowRank {
    Weights down;  // [rank, inputs], the modules' ranks below each other
    Weights up;    // [outputs, rank], laid out as the product's own panels; zero where a module doesn't write
    std::vector<int> first, end;  // of each panel of `up`: the steps that aren't all zeros

    bool exists() const { return down.outputs > 0; }
};

class Adapter {
  public:
    explicit Adapter(int num_layers) : arena_(kBlockWords, &spare()), sites_((size_t)num_layers * kNumSites) {}

    const LowRank& at(int layer, int site) const { return sites_[(size_t)layer * kNumSites + site]; }
    int rank() const { return rank_; }  // the largest of all sites

    // False: out of memory.
    template <class Number>
    bool set(
        int layer, int site, const void* const* down, int rank, int inputs, const void* const* up, int outputs
    ) {
        LowRank& to = sites_[(size_t)layer * kNumSites + site];
        if (!pack<Number>(to.down, down, rank, inputs, 1, arena_)) return false;
        if (!pack<Number>(to.up, up, outputs, rank, 1, arena_)) return false;
        for (int panel = 0; panel < to.up.panels(); panel++) {
            const uint32_t* words = to.up.panel(panel);
            int first = to.up.steps, end = 0;
            for (int i = 0; i < to.up.steps * kPanel; i++) {
                if (!words[i]) continue;
                first = std::min(first, i / kPanel);
                end = i / kPanel + 1;
            }
            to.first.push_back(first);
            to.end.push_back(end);
        }
        rank_ = std::max(rank_, rank);
        return true;
    }

  private:
    static constexpr size_t kBlockWords = 2u << 20;  // 8 MiB
    static constexpr size_t kSpareBlocks = 4;

    // Of adapters that have gone, for those that come. Never destroyed: an adapter may outlive everything else.
    static Arena::Spare& spare() {
        static auto* spare = new Arena::Spare(kSpareBlocks);
        return *spare;
    }

    Arena arena_;
    std::vector<LowRank> sites_;
    int rank_ = 0;
};

// Rows side by side that run with one adapter.
struct AdapterRun {
    int first, end;
    const Adapter* adapter;
};

// Which rows of a step run with which adapter.
class AdapterRows {
  public:
    // Rows come in order, from 0 on; null: the base model.
    void add(const Adapter* adapter) {
        const int row = num_rows_++;
        if (!adapter) return;
        if (runs_.empty() || runs_.back().end < row || runs_.back().adapter != adapter)
            runs_.push_back({row, row, adapter});
        runs_.back().end++;
        if (tiles_.empty() || tiles_.back().end < row || tiles_.back().adapter != adapter ||
            row - tiles_.back().first == kTileRows)
            tiles_.push_back({row, row, adapter});
        tiles_.back().end++;
        rank_ = std::max(rank_, adapter->rank());
    }

    int num_rows() const { return num_rows_; }
    int rank() const { return rank_; }  // the largest of them
    const std::vector<AdapterRun>& tiles() const { return tiles_; }  // runs in parts of at most kTileRows rows

    // Calls use(first, end, adapter) for the parts of runs in rows [first, end), each of at most kTileRows rows.
    template <class Use>
    void each_tile(int first, int end, const Use& use) const {
        auto run = std::upper_bound(
            runs_.begin(), runs_.end(), first, [](int row, const AdapterRun& one) { return row < one.end; }
        );
        for (; run != runs_.end() && run->first < end; ++run) {
            const int last = std::min(run->end, end);
            for (int row = std::max(run->first, first); row < last; row += kTileRows)
                use(row, std::min(row + kTileRows, last), *run->adapter);
        }
    }

  private:
    int num_rows_ = 0;
    int rank_ = 0;
    std::vector<AdapterRun> runs_, tiles_;
};

// Rows of `down x`, in the number format that `up` reads.
template <class Number>
class LowRows {
  public:
    using Stored = typename Number::Stored;

    // Room for `rows` rows of adapters up to `rank`. False: out of memory.
    bool reserve(int rows, int rank) {
        stride_ = (rank + Number::kPerWord - 1) / Number::kPerWord * Number::kPerWord;
        return numbers_.reserve((size_t)rows * stride_);
    }

    // down x for rows [first, end) of x, at most kTileRows of them with one adapter.
    void compute(const LowRank& part, const Stored* x, long x_stride, int first, int end) {
        if (!part.exists()) return;
        const auto* words = reinterpret_cast<const uint32_t*>(x + first * x_stride);
        for (int panel = 0; panel < part.down.panels(); panel++) {
            const int column = panel * kPanel;
            const int count = std::min(kPanel, part.down.outputs - column);
            multiply_rows<Number>(
                end - first, words, x_stride / Number::kPerWord, part.down.panel(panel), part.down.steps,
                [&](int i, const Columns& columns) {
                    float wide[kPanel];
                    store(wide, columns.low);
                    store(wide + kLanes, columns.high);
                    Stored* to = numbers_.data() + (long)(first + i) * stride_ + column;
                    for (int c = 0; c < count; c++) to[c] = Number::narrow(wide[c]);
                }
            );
        }
    }

    // One panel of up (down x) for such rows: use(row, columns). Not called where the adapter adds nothing there.
    template <class Use>
    void raise(const LowRank& part, int panel, int first, int end, const Use& use) const {
        if (!part.exists() || part.first[panel] >= part.end[panel]) return;
        const auto* words = reinterpret_cast<const uint32_t*>(numbers_.data() + (long)first * stride_);
        const int step = part.first[panel];
        multiply_rows<Number>(
            end - first, words + step, stride_ / Number::kPerWord, part.up.panel(panel) + (long)step * kPanel,
            part.end[panel] - step, [&](int i, const Columns& columns) { use(first + i, columns); }
        );
    }

  private:
    Buffer<Stored> numbers_;
    long stride_ = 0;
};

}  // namespace rg
