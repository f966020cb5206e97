/* The kernels of 16-bit floats in x86's vectors. Their bits are those of kernels.h's.
 *
 * A vector of 16-bit elements is widened into two of 32-bit floats, combined in rank order,
 * scaled, and rounded once. Written out, because the compiler's own vectors of these loops go
 * through 32-bit integers, element for element: two to five times the instructions. bfloat16 is
 * taken as pairs, of which one half is a float as it stands and the other is shifted there.
 *
 * AVX512-BF16 is not used: its rounding takes the smallest numbers for zero. AVX512-FP16 rounds
 * each sum. Arm's vectors have no form here: the compiler makes those of kernels.h. */
#ifndef HVD_EXT_HALVES_X86_H
#define HVD_EXT_HALVES_X86_H

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#include "floats.h"

#define AVX2_CODE __attribute__((target("avx2,f16c")))
#define AVX512_CODE __attribute__((target("avx512f,avx512bw")))
#define INLINE static inline __attribute__((always_inline))
#define RARE(condition) __builtin_expect((condition) != 0, 0)

/* Where two are equal or not in order, the instructions give the second, kernels.h the first. */
#define VECTORS_LESS(MM, a, b) MM##_min_ps(b, a)
#define VECTORS_MORE(MM, a, b) MM##_max_ps(b, a)
/* These give the first of two NaN. The compiler would exchange the operands as it likes. */
#define VECTORS_ADD(MM, a, b) IN_ORDER("vaddps", a, b)
#define VECTORS_MULTIPLY(MM, a, b) IN_ORDER("vmulps", a, b)
#define IN_ORDER(INSTRUCTION, a, b)                                             \
    __extension__({                                                             \
        __typeof__(a) result;                                                   \
        __asm__(INSTRUCTION " %2, %1, %0" : "=v"(result) : "v"(a), "v"(b));     \
        result;                                                                 \
    })

struct floats256 {
    __m256 low, high;
};

struct floats512 {
    __m512 low, high;
};

AVX2_CODE INLINE struct floats256 widen_bfloat256(const char *at) {
    __m256i pairs = _mm256_loadu_si256((const __m256i *)at);
    __m256i high = _mm256_and_si256(pairs, _mm256_set1_epi32((int)0xffff0000));
    return (struct floats256){_mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16)),
                              _mm256_castsi256_ps(high)};
}

/* Rounded in the upper 16 bits. A NaN, which is quiet by now, is cut off. */
AVX2_CODE INLINE __m256i round_bfloat256(__m256 value) {
    __m256i bits = _mm256_castps_si256(value);
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    __m256i up = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff));
    __m256i number = _mm256_castps_si256(_mm256_cmp_ps(value, value, _CMP_ORD_Q));
    return _mm256_add_epi32(bits, _mm256_and_si256(up, number));
}

AVX2_CODE INLINE __m256i narrow_bfloat256(struct floats256 wide) {
    __m256i low = _mm256_srli_epi32(round_bfloat256(wide.low), 16);
    return _mm256_blend_epi16(low, round_bfloat256(wide.high), 0xaa);
}

AVX512_CODE INLINE struct floats512 widen_bfloat512(const char *at) {
    __m512i pairs = _mm512_loadu_si512(at);
    __m512i high = _mm512_and_si512(pairs, _mm512_set1_epi32((int)0xffff0000));
    return (struct floats512){_mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16)),
                              _mm512_castsi512_ps(high)};
}

AVX512_CODE INLINE __m512i round_bfloat512(__m512 value) {
    __m512i bits = _mm512_castps_si512(value);
    __mmask16 number = _mm512_cmp_ps_mask(value, value, _CMP_ORD_Q);
    __mmask16 odd = _mm512_mask_test_epi32_mask(number, bits, _mm512_set1_epi32(0x10000));
    bits = _mm512_mask_add_epi32(bits, number, bits, _mm512_set1_epi32(0x7fff));
    return _mm512_mask_add_epi32(bits, odd, bits, _mm512_set1_epi32(1));
}

AVX512_CODE INLINE __m512i narrow_bfloat512(struct floats512 wide) {
    __m512i low = _mm512_srli_epi32(round_bfloat512(wide.low), 16);
    return _mm512_mask_blend_epi16(0xaaaaaaaa, low, round_bfloat512(wide.high));
}

AVX2_CODE INLINE struct floats256 widen_half256(const char *at) {
    return (struct floats256){_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)at)),
                              _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)at + 1))};
}

/* A NaN, which is quiet by now, keeps its sign and nothing else. There are few. */
AVX2_CODE INLINE __m256i narrow_half256(struct floats256 wide) {
    __m256i halves = _mm256_set_m128i(_mm256_cvtps_ph(wide.high, _MM_FROUND_TO_NEAREST_INT),
                                      _mm256_cvtps_ph(wide.low, _MM_FROUND_TO_NEAREST_INT));
    if (RARE(_mm256_movemask_ps(_mm256_cmp_ps(wide.low, wide.high, _CMP_UNORD_Q)))) {
        __m256i magnitude = _mm256_and_si256(halves, _mm256_set1_epi16(0x7fff));
        __m256i nan = _mm256_cmpgt_epi16(magnitude, _mm256_set1_epi16(0x7c00));
        halves = _mm256_andnot_si256(_mm256_and_si256(nan, _mm256_set1_epi16(0x1ff)), halves);
    }
    return halves;
}

AVX512_CODE INLINE struct floats512 widen_half512(const char *at) {
    return (struct floats512){_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)at)),
                              _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)at + 1))};
}

AVX512_CODE INLINE __m512i narrow_half512(struct floats512 wide) {
    __m256i low = _mm512_cvtps_ph(wide.low, _MM_FROUND_TO_NEAREST_INT);
    __m256i high = _mm512_cvtps_ph(wide.high, _MM_FROUND_TO_NEAREST_INT);
    __m512i halves = _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
    if (RARE(_mm512_cmp_ps_mask(wide.low, wide.high, _CMP_UNORD_Q))) {
        __m512i magnitude = _mm512_and_si512(halves, _mm512_set1_epi16(0x7fff));
        __mmask32 nan = _mm512_cmpgt_epi16_mask(magnitude, _mm512_set1_epi16(0x7c00));
        halves = _mm512_andnot_si512(_mm512_maskz_set1_epi16(nan, 0x1ff), halves);
    }
    return halves;
}

/* Sums and products are no signalling NaN: times 1 they stay as they are, and are not multiplied. */
#define DEFINE_VECTORS(NAME, BITS, CODE, MM, TYPE, COMBINE, QUIETS)                       \
    CODE INLINE __m##BITS##i NAME##_step(const char *const *in, int n_in, uint64_t at,    \
                                         __m##BITS factor, int scales) {                  \
        struct floats##BITS sum = widen_##TYPE##BITS(in[0] + at);                          \
        for (int r = 1; r < n_in; r++) {                                                  \
            struct floats##BITS next = widen_##TYPE##BITS(in[r] + at);                     \
            sum.low = COMBINE(MM, sum.low, next.low);                                     \
            sum.high = COMBINE(MM, sum.high, next.high);                                  \
        }                                                                                 \
        if (scales) {                                                                     \
            sum.low = MM##_mul_ps(sum.low, factor);                                       \
            sum.high = MM##_mul_ps(sum.high, factor);                                     \
        }                                                                                 \
        return narrow_##TYPE##BITS(sum);                                                  \
    }                                                                                     \
    CODE INLINE void NAME##_steps(const char *const *in, int n_in, char *const *out,      \
                                  int n_out, uint64_t end, __m##BITS factor, int scales) { \
        for (uint64_t at = 0; at < end; at += BITS / 8) {                                 \
            __m##BITS##i halves = NAME##_step(in, n_in, at, factor, scales);              \
            for (int r = 0; r < n_out; r++) memcpy(out[r] + at, &halves, BITS / 8);       \
        }                                                                                 \
    }                                                                                     \
    CODE static void NAME(const char *const *in, int n_in, char *const *out, int n_out,   \
                          uint64_t count, double scale) {                                 \
        enum { STEP = BITS / 8 };                                                         \
        const __m##BITS factor = MM##_set1_ps((float)scale);                              \
        const uint64_t bytes = 2 * count, left = bytes % STEP, end = bytes - left;        \
        if (QUIETS && n_in > 1 && scale == 1.0)                                           \
            NAME##_steps(in, n_in, out, n_out, end, factor, 0);                           \
        else                                                                              \
            NAME##_steps(in, n_in, out, n_out, end, factor, 1);                           \
        if (!left) return;                                                                \
        char rest[n_in][STEP];                                                            \
        const char *rests[n_in];                                                          \
        for (int r = 0; r < n_in; r++) {                                                  \
            memset(rest[r], 0, STEP);                                                     \
            rests[r] = memcpy(rest[r], in[r] + end, left);                                \
        }                                                                                 \
        __m##BITS##i halves = NAME##_step(rests, n_in, 0, factor, 1);                     \
        for (int r = 0; r < n_out; r++) memcpy(out[r] + end, &halves, left);              \
    }

#define DEFINE_FORM(NAME, BITS, CODE, MM, TYPE)                             \
    DEFINE_VECTORS(sum_##NAME, BITS, CODE, MM, TYPE, VECTORS_ADD, 1)        \
    DEFINE_VECTORS(min_##NAME, BITS, CODE, MM, TYPE, VECTORS_LESS, 0)       \
    DEFINE_VECTORS(max_##NAME, BITS, CODE, MM, TYPE, VECTORS_MORE, 0)       \
    DEFINE_VECTORS(product_##NAME, BITS, CODE, MM, TYPE, VECTORS_MULTIPLY, 1)

DEFINE_FORM(float16_avx2, 256, AVX2_CODE, _mm256, half)
DEFINE_FORM(bfloat16_avx2, 256, AVX2_CODE, _mm256, bfloat)
DEFINE_FORM(float16_avx512, 512, AVX512_CODE, _mm512, half)
DEFINE_FORM(bfloat16_avx512, 512, AVX512_CODE, _mm512, bfloat)

#endif
