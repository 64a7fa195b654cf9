// The one inner loop of every product here: a few rows times one panel of columns, accumulated in registers.
//
// A panel holds kPanel columns step by step: word [step][column], see numbers.h. Each element of a result is added up
// over the steps in order, in a lane of its own. So it depends neither on how many rows are computed together nor on
// which: a row has one result, in a decode step, in a prompt's chunk and on any number of threads.
#pragma once

#include "numbers.h"

namespace rg {

struct Columns {
    Vec low, high;  // columns [0, kLanes) and [kLanes, kPanel) of a panel
};

// sums[row] += rows [M][steps] times the panel. `stride` is the distance of rows in words.
template <class Number, int M>
inline void multiply(const uint32_t* rows, long stride, const uint32_t* panel, int steps, Columns (&sums)[M]) {
    for (int step = 0; step < steps; step++) {
        const auto low = Number::load_words(panel + (long)step * kPanel);
        const auto high = Number::load_words(panel + (long)step * kPanel + kLanes);
#pragma GCC unroll 16
        for (int row = 0; row < M; row++) {
            const auto a = Number::splat_word(rows + row * stride + step);
            sums[row].low = Number::multiply_add(sums[row].low, a, low);
            sums[row].high = Number::multiply_add(sums[row].high, a, high);
        }
    }
}

template <class Number, int M = kTileRows>
inline void multiply_exactly(
    int num_rows, const uint32_t* rows, long stride, const uint32_t* panel, int steps, float* out, long out_stride
) {
    if constexpr (M > 0) {
        if (num_rows != M)
            return multiply_exactly<Number, M - 1>(num_rows, rows, stride, panel, steps, out, out_stride);
        Columns sums[M] = {};
        multiply<Number, M>(rows, stride, panel, steps, sums);
#pragma GCC unroll 16
        for (int row = 0; row < M; row++) {
            store(out + row * out_stride, sums[row].low);
            store(out + row * out_stride + kLanes, sums[row].high);
        }
    }
}

// Computes `num_rows` <= kTileRows rows of kPanel columns. Not inlined: there is a loop for each number of rows in it.
template <class Number>
__attribute__((noinline)) void multiply_rows(
    int num_rows, const uint32_t* rows, long stride, const uint32_t* panel, int steps, float* out, long out_stride
) {
    multiply_exactly<Number>(num_rows, rows, stride, panel, steps, out, out_stride);
}

// The same, handing each row to use(row, columns).
template <class Number, class Use>
inline void multiply_rows(
    int num_rows, const uint32_t* rows, long stride, const uint32_t* panel, int steps, const Use& use
) {
    float results[kTileRows * kPanel];
    multiply_rows<Number>(num_rows, rows, stride, panel, steps, results, kPanel);
    for (int row = 0; row < num_rows; row++)
        use(row, Columns{load(results + row * kPanel), load(results + row * kPanel + kLanes)});
}

}  // namespace rg
