/* 16-bit floats as 32-bit ones and back, rounded to nearest even once; and how loops are compiled. */
#ifndef HVD_EXT_FLOATS_H
#define HVD_EXT_FLOATS_H

#include <stdint.h>
#include <string.h>

/* x86 builds carry several versions of a loop and pick one when loaded, at which time the thread
 * sanitizer is not ready yet. */
#if defined(__x86_64__) && defined(__gnu_linux__) && !defined(__clang__) && \
    !defined(__SANITIZE_THREAD__)
#define VECTOR __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define VECTOR
#endif

static inline float float_from_bits(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline uint32_t bits_of_float(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float from_half(uint16_t h) {
    uint32_t magnitude = (uint32_t)(h & 0x7fff) << 13;
    float value = float_from_bits(magnitude) * 0x1p112f; /* moves the exponent's bias */
    uint32_t bits = bits_of_float(value) | ((h & 0x7c00) == 0x7c00 ? 0x7f800000u : 0u);
    return float_from_bits(bits | (uint32_t)(h & 0x8000) << 16);
}

static inline uint16_t to_half(float value) {
    uint32_t bits = bits_of_float(value), sign = bits >> 16 & 0x8000;
    bits &= 0x7fffffff;
    uint32_t normal = (bits + 0xfff + (bits >> 13 & 1) - (112u << 23)) >> 13;
    /* Added to 0.5, whose last place is the smallest half, the rounding is done. */
    uint32_t tiny = bits_of_float(float_from_bits(bits) + 0.5f) - 0x3f000000u;
    uint32_t half = bits < 0x38800000u ? tiny : normal;
    half = bits >= 0x477ff000u ? 0x7c00 : half;
    half = bits > 0x7f800000u ? 0x7e00 : half;
    return (uint16_t)(half | sign);
}

static inline float from_bfloat(uint16_t b) { return float_from_bits((uint32_t)b << 16); }

static inline uint16_t to_bfloat(float value) {
    uint32_t bits = bits_of_float(value);
    uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    return (uint16_t)((bits & 0x7fffffff) > 0x7f800000u ? bits >> 16 | 0x40 : rounded);
}

#endif
