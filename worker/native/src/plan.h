// What one step attends to, cut into items that threads can take. Knows rows, sequences and positions; no numbers.
//
// The keys of a sequence are cut into *blocks* of kBlock positions and *spans* of kSpanBlocks blocks, both counted from
// position 0. A row's result is defined by them: within a span block after block, then span after span. Whoever computes
// which part of that, alone or with rows of other sequences whose slots are the same there, the result has the same bits.
//
//   positions  0 ........ 128 ........ 256 ...............  1024 .............  2048
//   blocks     |----------|-----------|-----  ...  --------|----------- ...
//   spans      |--------------------------------------------|--------------------|---
//   cascade    |== shared by four rows' sequences ==|-- each on its own --------------
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <vector>

namespace rg {

constexpr int kBlock = 128;     // positions
constexpr int kSpanBlocks = 8;  // blocks
constexpr int kItemRows = 96;   // rows of a product, over the query heads that share keys

// Rows that attend to the blocks [first_block, end_block) of what `sequence` has.
struct Item {
    int first_row;  // index into Items::rows
    int num_rows;
    int sequence;
    int first_block;
    int end_block;
    int last_position;  // the largest of its rows'
};

struct Items {
    std::vector<int> rows;
    // An item may go on with a span that an item of the level before has begun.
    std::vector<std::vector<Item>> levels;
};

// Borrowed arrays in CSR form, see worker.batch.Batch and worker.attention.sharing.
struct Step {
    int num_sequences;
    const int32_t* positions;   // of each row
    const int32_t* qo_indptr;   // rows of each sequence
    const int32_t* kv_indptr;   // slots of each sequence
    const int32_t* kv_indices;  // slots
    int num_ranges;             // shared by several sequences; parents before children
    const int32_t* range_indptr;
    const int32_t* range_sequences;
    const int32_t* range_first;  // positions, multiples of kBlock
    const int32_t* range_end;

    int num_rows() const { return qo_indptr[num_sequences]; }
    const int32_t* slots(int sequence) const { return kv_indices + kv_indptr[sequence]; }
    int num_keys(int sequence) const { return kv_indptr[sequence + 1] - kv_indptr[sequence]; }
};

class Plan {
  public:
    explicit Plan(const Step& step) : step_(step) {
        first_span_.reserve(step.num_rows() + 1);
        first_span_.push_back(0);
        for (int row = 0; row < step.num_rows(); row++)
            first_span_.push_back(first_span_.back() + num_spans(row));
    }

    const Step& step() const { return step_; }
    int position(int row) const { return step_.positions[row]; }
    int num_spans(int row) const { return position(row) / (kBlock * kSpanBlocks) + 1; }
    long first_span(int row) const { return first_span_[row]; }  // among the spans of all rows
    long total_spans() const { return first_span_.back(); }

    // Items for layers in which `group` query heads share keys, enough of them for `wanted` to run side by side.
    const Items& items(int group, int wanted) {
        Items& items = items_[group];
        if (items.levels.empty()) build(items, std::max(1, kItemRows / group), wanted);
        return items;
    }

  private:
    struct Part {  // rows in Items::rows and what they attend to
        int first_row, end_row, sequence, first_block, end_block;
    };

    void build(Items& items, int rows_per_item, int wanted) {
        std::vector<Part> parts;
        std::vector<int> shared_end(step_.num_sequences, 0);  // block up to which a sequence is covered
        for (int range = 0; range < step_.num_ranges; range++) {
            const int first = (int)items.rows.size();
            for (int i = step_.range_indptr[range]; i < step_.range_indptr[range + 1]; i++) {
                const int sequence = step_.range_sequences[i];
                shared_end[sequence] = step_.range_end[range] / kBlock;
                for (int row = step_.qo_indptr[sequence]; row < step_.qo_indptr[sequence + 1]; row++)
                    items.rows.push_back(row);
            }
            const int sequence = step_.range_sequences[step_.range_indptr[range]];
            cut(parts, first, (int)items.rows.size(), rows_per_item, sequence, step_.range_first[range] / kBlock,
                step_.range_end[range] / kBlock);
        }
        for (int sequence = 0; sequence < step_.num_sequences; sequence++) {
            const int first = (int)items.rows.size();
            for (int row = step_.qo_indptr[sequence]; row < step_.qo_indptr[sequence + 1]; row++)
                items.rows.push_back(row);
            cut(parts, first, (int)items.rows.size(), rows_per_item, sequence, shared_end[sequence],
                (step_.num_keys(sequence) + kBlock - 1) / kBlock);
        }
        place(items, parts, wanted);
    }

    static void cut(
        std::vector<Part>& parts, int first_row, int end_row, int rows, int sequence, int first_block, int end_block
    ) {
        if (first_block >= end_block) return;
        for (int row = first_row; row < end_row; row += rows)
            parts.push_back({row, std::min(row + rows, end_row), sequence, first_block, end_block});
    }

    // Puts each part, as one item or as one for each span, behind what begins its first span. A part that is more than
    // its share of the work, of `wanted`, would be waited for.
    void place(Items& items, const std::vector<Part>& parts, int wanted) {
        long total = 0;
        for (const Part& part : parts) total += cost(part);
        std::vector<int> begun(step_.num_rows(), -1);  // level at which a row's unfinished span was left
        items.levels.emplace_back();
        for (const Part& part : parts) {
            int last_position = 0, level = -1;
            for (int i = part.first_row; i < part.end_row; i++) {
                last_position = std::max(last_position, position(items.rows[i]));
                level = std::max(level, begun[items.rows[i]]);
            }
            const bool by_span = cost(part) * wanted > total;
            const int end = std::min(part.end_block, last_position / kBlock + 1);
            for (int block = part.first_block; block < end;) {
                const int span_end = (block / kSpanBlocks + 1) * kSpanBlocks;
                const int item_end = by_span ? std::min(end, span_end) : end;
                level = block % kSpanBlocks == 0 ? 0 : level + 1;
                if ((int)items.levels.size() <= level) items.levels.resize(level + 1);
                items.levels[level].push_back(
                    {part.first_row, part.end_row - part.first_row, part.sequence, block, item_end, last_position}
                );
                block = item_end;
            }
            for (int i = part.first_row; i < part.end_row; i++) begun[items.rows[i]] = level;
        }
        for (auto& level : items.levels)
            std::stable_sort(level.begin(), level.end(), [](const Item& a, const Item& b) { return cost(a) > cost(b); });
    }

    static long cost(int rows, int blocks) { return (long)(rows + 2) * blocks; }
    static long cost(const Part& part) {
        return cost(part.end_row - part.first_row, part.end_block - part.first_block);
    }
    static long cost(const Item& item) { return cost(item.num_rows, item.end_block - item.first_block); }

    Step step_;
    std::vector<long> first_span_;
    std::map<int, Items> items_;
};

}  // namespace rg
