// Vectors of one register, and arithmetic on them that the compiler has no operator for. Knows no layouts.
//
// Written with the compiler's vector extension, so that it compiles for any processor; bfloat16 products need
// AVX512-BF16 and exist only where that is compiled for (RG_HAS_BF16).
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__AVX512F__)
#include <immintrin.h>
#define RG_LANES 16
#define RG_TILE_ROWS 12  // 24 of the 32 registers accumulate
#elif defined(__AVX__)
#include <immintrin.h>
#define RG_LANES 8
#define RG_TILE_ROWS 6  // 12 of the 16 registers accumulate
#else
#define RG_LANES 4
#define RG_TILE_ROWS 8
#endif

#if defined(__AVX512BF16__) && defined(__AVX512BW__)
#define RG_HAS_BF16 1
#else
#define RG_HAS_BF16 0
#endif

namespace rg {

constexpr int kLanes = RG_LANES;
constexpr int kTileRows = RG_TILE_ROWS;   // most rows of one tile
constexpr int kPanel = 2 * kLanes;        // columns of one tile

typedef float Vec __attribute__((vector_size(4 * RG_LANES)));
typedef int32_t VecInt __attribute__((vector_size(4 * RG_LANES)));

inline Vec load(const float* from) {
    Vec v;
    std::memcpy(&v, from, sizeof v);
    return v;
}

inline void store(float* to, Vec v) { std::memcpy(to, &v, sizeof v); }

inline Vec splat(float x) { return Vec{} + x; }

inline Vec select(VecInt where, Vec yes, Vec no) { return (Vec)(((VecInt)yes & where) | ((VecInt)no & ~where)); }

#if defined(__AVX512F__)
inline Vec larger(Vec a, Vec b) { return (Vec)_mm512_max_ps((__m512)a, (__m512)b); }
#else
inline Vec larger(Vec a, Vec b) { return select(a > b, a, b); }
#endif

inline VecInt lane_numbers() {
    VecInt v;
    for (int i = 0; i < kLanes; i++) v[i] = i;
    return v;
}

// Lanes fold in halves, so that the order is the same everywhere.
template <class Fold>
inline float fold_lanes(Vec v, const Fold& fold) {
    Vec other{};
#if RG_LANES >= 16
    other = __builtin_shuffle(v, VecInt{8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7});
    v = fold(v, other);
    other = __builtin_shuffle(v, VecInt{4, 5, 6, 7, 0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3});
    v = fold(v, other);
    other = __builtin_shuffle(v, VecInt{2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1});
    v = fold(v, other);
    other = __builtin_shuffle(v, VecInt{1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0});
    return fold(v, other)[0];
#else
    for (int width = kLanes / 2; width > 0; width /= 2) {
        for (int i = 0; i < width; i++) other[i] = v[i + width];
        v = fold(v, other);
    }
    return v[0];
#endif
}

inline float sum(Vec v) {
    return fold_lanes(v, [](Vec a, Vec b) { return a + b; });
}

inline float maximum(Vec v) {
    return fold_lanes(v, [](Vec a, Vec b) { return larger(a, b); });
}

// e^x to about 2 ulp; exactly 0 where that is too small for a normal number, which includes -inf. For x up to 88.
inline Vec exp(Vec x) {
    // x = n ln 2 + r with |r| <= ln 2 / 2; adding and taking away 1.5 * 2^23 rounds to a whole number.
    const Vec rounder = splat(12582912.0f);
    const Vec bounded = larger(x, splat(-110.0f));
    const Vec n = (bounded * splat(1.44269504088896341f) + rounder) - rounder;
    const Vec r = (bounded - n * splat(0.693359375f)) - n * splat(-2.12194440e-4f);
    Vec p = splat(1.9875691500e-4f);
    p = p * r + splat(1.3981999507e-3f);
    p = p * r + splat(8.3334519073e-3f);
    p = p * r + splat(4.1665795894e-2f);
    p = p * r + splat(1.6666665459e-1f);
    p = p * r + splat(5.0000001201e-1f);
    p = (p * r) * r + (r + splat(1.0f));
#if defined(__AVX512F__)
    const __mmask16 normal = _mm512_cmp_ps_mask((__m512)x, _mm512_set1_ps(-87.0f), _CMP_GE_OQ);
    return (Vec)_mm512_maskz_scalef_ps(normal, (__m512)p, (__m512)n);
#else
    const VecInt exponent = __builtin_convertvector(n, VecInt) << 23;
    return (Vec)((VecInt)((Vec)((VecInt)p + exponent)) & (x >= splat(-87.0f)));
#endif
}

inline Vec tanh(Vec x) {
    const Vec bounded = larger(splat(-15.0f), -larger(splat(-15.0f), -x));
    return splat(1.0f) - splat(2.0f) / (exp(bounded * splat(2.0f)) + splat(1.0f));
}

inline uint16_t round_bf16(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, 4);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return (uint16_t)((bits >> 16) | 64);  // stays a NaN
    return (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1)) >> 16);
}

inline float widen_bf16(uint16_t x) {
    const uint32_t bits = (uint32_t)x << 16;
    float wide;
    std::memcpy(&wide, &bits, 4);
    return wide;
}

}  // namespace rg
