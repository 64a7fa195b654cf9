// Rows that lie anywhere, packed into panels for the tile, see tile.h: weights, and keys and values of one block.
#pragma once

#include "tile.h"

namespace rg {

#if defined(__AVX512F__)
// Transposes 16 rows of 16 words.
inline void transpose(__m512i (&rows)[16]) {
    __m512i t[16];
#pragma GCC unroll 8
    for (int i = 0; i < 16; i += 2) {
        t[i] = _mm512_unpacklo_epi32(rows[i], rows[i + 1]);
        t[i + 1] = _mm512_unpackhi_epi32(rows[i], rows[i + 1]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 16; i += 4) {
        rows[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
        rows[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
        rows[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
        rows[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        t[i] = _mm512_shuffle_i32x4(rows[i], rows[i + 4], 0x88);
        t[i + 4] = _mm512_shuffle_i32x4(rows[i], rows[i + 4], 0xdd);
        t[i + 8] = _mm512_shuffle_i32x4(rows[i + 8], rows[i + 12], 0x88);
        t[i + 12] = _mm512_shuffle_i32x4(rows[i + 8], rows[i + 12], 0xdd);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        rows[i] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0x88);
        rows[i + 8] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0xdd);
        rows[i + 4] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0x88);
        rows[i + 12] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0xdd);
    }
}
#endif

// Words of kLanes rows, side by side: to[word * kPanel + row]. Each row begins `offset` words behind its pointer; a null
// row is all zeros.
inline void pack_columns(const uint32_t* const* rows, long offset, int words, uint32_t* to) {
#if defined(__AVX512F__)
    for (int first = 0; first < words; first += 16) {
        const int some = words - first < 16 ? words - first : 16;
        const __mmask16 mask = (__mmask16)((1u << some) - 1);
        __m512i block[16];
#pragma GCC unroll 16
        for (int row = 0; row < 16; row++)
            block[row] =
                rows[row] ? _mm512_maskz_loadu_epi32(mask, rows[row] + offset + first) : _mm512_setzero_si512();
        transpose(block);
        if (some == 16) {
#pragma GCC unroll 16
            for (int word = 0; word < 16; word++) _mm512_storeu_si512(to + (first + word) * kPanel, block[word]);
        } else {
            for (int word = 0; word < some; word++) _mm512_storeu_si512(to + (first + word) * kPanel, block[word]);
        }
    }
#else
    for (int row = 0; row < kLanes; row++) {
        for (int word = 0; word < words; word++) {
            uint32_t value = 0;  // weights may lie at any address
            if (rows[row]) std::memcpy(&value, rows[row] + offset + word, sizeof value);
            to[word * kPanel + row] = value;
        }
    }
#endif
}

// Panels of values: step s, column c holds dimension c of the kPerWord keys of that step. Null keys are zeros.
template <class Number>
inline void pack_some_values(
    const typename Number::Stored* const* keys, int dims, uint32_t* panels, int steps, int step
);

template <>
inline void pack_some_values<Float32>(
    const float* const* keys, int dims, uint32_t* panels, int steps, int step
) {
    for (int first = 0; first < dims; first += kPanel) {
        const int some = dims - first < kPanel ? dims - first : kPanel;
        uint32_t* to = panels + ((long)(first / kPanel) * steps + step) * kPanel;
        if (keys[0])
            std::memcpy(to, keys[0] + first, 4 * some);
        else
            std::memset(to, 0, 4 * some);
        if (some < kPanel) std::memset(to + some, 0, 4 * (kPanel - some));
    }
}

#if RG_HAS_BF16
template <>
inline void pack_some_values<BFloat16>(
    const uint16_t* const* keys, int dims, uint32_t* panels, int steps, int step
) {
    alignas(64) static constexpr uint16_t kLow[32] = {0, 32, 1, 33, 2,  34, 3,  35, 4,  36, 5,  37, 6,  38, 7,  39,
                                                      8, 40, 9, 41, 10, 42, 11, 43, 12, 44, 13, 45, 14, 46, 15, 47};
    const __m512i low = _mm512_load_si512(kLow);
    const __m512i high = _mm512_add_epi16(low, _mm512_set1_epi16(16));
    for (int first = 0; first < dims; first += kPanel) {
        const int some = dims - first < kPanel ? dims - first : kPanel;
        const __mmask32 mask = some == 32 ? ~(__mmask32)0 : (((__mmask32)1 << some) - 1);
        const __m512i zero = _mm512_setzero_si512();
        const __m512i one = keys[0] ? _mm512_maskz_loadu_epi16(mask, keys[0] + first) : zero;
        const __m512i two = keys[1] ? _mm512_maskz_loadu_epi16(mask, keys[1] + first) : zero;
        uint32_t* to = panels + ((long)(first / kPanel) * steps + step) * kPanel;
        _mm512_storeu_si512(to, _mm512_permutex2var_epi16(one, low, two));
        _mm512_storeu_si512(to + 16, _mm512_permutex2var_epi16(one, high, two));
    }
}
#endif

}  // namespace rg
