// Linear layers: weights packed once into panels, and their product with the rows of a step.
#pragma once

#include "buffer.h"
#include "panels.h"
#include "team.h"
#include "tile.h"

namespace rg {

// A matrix [outputs, inputs] as panels of kPanel outputs each, see tile.h.
struct Weights {
    int outputs = 0;
    int inputs = 0;
    int steps = 0;
    Arena::Piece words;

    int panels() const { return (outputs + kPanel - 1) / kPanel; }
    const uint32_t* panel(int number) const { return words.get() + (long)number * steps * kPanel; }
};

// Packs the rows that `rows` points to, each `inputs` numbers; null stands for a row of zeros. False: out of memory.
template <class Number>
bool pack(
    Weights& weights, const void* const* rows, int outputs, int inputs, int threads,
    Arena& arena = Arena::of_models()
) {
    weights.outputs = outputs;
    weights.inputs = inputs;
    weights.steps = inputs / Number::kPerWord;
    const long steps = weights.steps;
    weights.words = arena.take((size_t)weights.panels() * steps * kPanel);
    if (!weights.words) return false;
    uint32_t* words = weights.words.get();
    Team::run(threads, 1, [&](Member& member) {
        member.share(weights.panels(), [&](long panel) {
            for (int first = 0; first < kPanel; first += kLanes) {
                const uint32_t* some[kLanes];
                bool any = false;
                for (int i = 0; i < kLanes; i++) {
                    const long output = panel * kPanel + first + i;
                    some[i] = output < outputs ? static_cast<const uint32_t*>(rows[output]) : nullptr;
                    any = any || some[i];
                }
                if (any) pack_columns(some, 0, (int)steps, words + panel * steps * kPanel + first);
            }
        });
    });
    return true;
}

// What goes on beside a product, in its phase: `count` tasks.
template <class Task>
struct Beside {
    long count;
    const Task& task;
};

inline auto beside_nothing() {
    static constexpr auto kNothing = [](long) {};
    return Beside<decltype(kNothing)>{0, kNothing};
}

// Multiplies `num_rows` rows of x [num_rows][stride] and hands out use(row, panel, columns), in any order. Before that,
// plus(first row, end row, panel, results [rows][kPanel]) may change what is handed out.
//
// One task is a block of rows that stays in the second-level cache, times some panels.
template <class Number, class Use, class Plus, class Task>
void apply(
    Member& member, const Weights& weights, const typename Number::Stored* x, long stride, int num_rows, const Use& use,
    const Plus& plus, const Beside<Task>& beside
) {
    if (num_rows == 0) return;
    constexpr int kTilesPerBlock = 8;
    constexpr int kTasksPerMember = 6;
    const int num_tiles = (num_rows + kTileRows - 1) / kTileRows;
    const int tile_rows = (num_rows + num_tiles - 1) / num_tiles;
    const int block_rows = tile_rows * kTilesPerBlock;
    const int blocks = (num_rows + block_rows - 1) / block_rows;
    const int panels = weights.panels();
    const int wanted = panels * blocks / (member.size() * kTasksPerMember);
    const int panels_per_task = wanted < 1 ? 1 : wanted > 16 ? 16 : wanted;
    const int tasks_per_block = (panels + panels_per_task - 1) / panels_per_task;
    const long words = stride / Number::kPerWord;
    const auto* x_words = reinterpret_cast<const uint32_t*>(x);
    member.share(beside.count + (long)blocks * tasks_per_block, [&](long task) {
        if (task < beside.count) return beside.task(task);
        task -= beside.count;
        const int first_row = (int)(task / tasks_per_block) * block_rows;
        const int end_row = first_row + block_rows < num_rows ? first_row + block_rows : num_rows;
        const int first_panel = (int)(task % tasks_per_block) * panels_per_task;
        const int end_panel = first_panel + panels_per_task < panels ? first_panel + panels_per_task : panels;
        for (int panel = first_panel; panel < end_panel; panel++) {
            for (int row = first_row; row < end_row; row += tile_rows) {
                const int rows = end_row - row < tile_rows ? end_row - row : tile_rows;
                float results[kTileRows * kPanel];
                multiply_rows<Number>(
                    rows, x_words + row * words, words, weights.panel(panel), weights.steps, results, kPanel
                );
                plus(row, row + rows, panel, results);
                for (int i = 0; i < rows; i++)
                    use(row + i, panel, Columns{load(results + i * kPanel), load(results + i * kPanel + kLanes)});
            }
        }
    });
}

// The product alone.
template <class Number, class Use>
void apply(
    Member& member, const Weights& weights, const typename Number::Stored* x, long stride, int num_rows, const Use& use
) {
    apply<Number>(member, weights, x, stride, num_rows, use, [](int, int, int, float*) {}, beside_nothing());
}

}  // namespace rg
