// The two number formats that models compute in, as traits: what is stored, and how a tile multiplies it.
//
// A *step* of a product is what one instruction takes of the inner dimension: one float32, or a pair of bfloat16 that
// is multiplied and added at once. Both fill 4 bytes, so whatever moves operands around moves 4-byte words for both.
#pragma once

#include "vector.h"

namespace rg {

struct Float32 {
    using Stored = float;
    static constexpr int kPerWord = 1;  // numbers in a word, and inner elements in a step

    static float widen(Stored x) { return x; }
    static Stored narrow(float x) { return x; }
    static void store_narrow(Stored* to, Vec v) { store(to, v); }

    using Operand = Vec;
    static Operand load_words(const uint32_t* from) {
        Operand v;
        std::memcpy(&v, from, sizeof v);
        return v;
    }
    static Operand splat_word(const uint32_t* from) {
        float x;
        std::memcpy(&x, from, 4);
        return splat(x);
    }
    static Vec multiply_add(Vec sum, Operand a, Operand b) { return sum + a * b; }
};

#if RG_HAS_BF16
struct BFloat16 {
    using Stored = uint16_t;
    static constexpr int kPerWord = 2;

    static float widen(Stored x) { return widen_bf16(x); }
    static Stored narrow(float x) { return round_bf16(x); }
    static void store_narrow(Stored* to, Vec v) {
        _mm256_storeu_si256((__m256i*)to, (__m256i)_mm512_cvtneps_pbh((__m512)v));
    }

    using Operand = __m512i;
    static Operand load_words(const uint32_t* from) { return _mm512_loadu_si512(from); }
    static Operand splat_word(const uint32_t* from) { return _mm512_set1_epi32((int)*from); }
    static Vec multiply_add(Vec sum, Operand a, Operand b) {
        return (Vec)_mm512_dpbf16_ps((__m512)sum, (__m512bh)a, (__m512bh)b);
    }
};
#endif

}  // namespace rg
