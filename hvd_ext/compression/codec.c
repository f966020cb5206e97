/* What travels between nodes: gradients as fewer bytes.
 *
 * A message is a list of runs of elements, one after the other. A run travels in one of
 * these formats, each padded to 4 bytes:
 *   raw       float32 as it is
 *   bfloat16, float16   2 bytes an element, rounded to nearest even
 *   int8      blocks of 256 elements: a float32 scale, then a byte an element
 *
 * What int8 rounds away is kept in a residual and is part of the next message (error
 * feedback: Karimireddy et al., ICML 2019). Every operation is rounded once and in a fixed
 * order (-ffp-contract=off, no sums across elements), so that all kinds of CPU get the
 * same bits. A block that holds NaN or infinity arrives as NaN.
 *
 * Called from Python through ctypes, which releases the GIL.
 */
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "../shm/kernels/floats.h"
#include "low_rank.h"

/* AHEAD: elements that are on their way from memory while a block is encoded. */
enum { BLOCK = 256, AHEAD = 1024 };

struct run {
    uint64_t begin, count; /* elements, from the start of the message's part */
    int32_t format; /* in FORMATS */
    int32_t unused;
};

/* Below this a block is sent as zeros: its scale, or 127 over it, could not be held. */
static const float LEAST = 0x1p-119f;
/* Added and taken off again, it rounds to a whole number, to the even one in the middle. */
static const float ROUNDER = 12582912.0f;
static const uint32_t INFINITE = 0x7f800000u;

static uint64_t padded(uint64_t bytes) { return (bytes + 3) & ~(uint64_t)3; }

static inline __attribute__((always_inline)) void
encode_block(const float *x, float scale_of_x, float *residual, uint64_t n, char *out) {
    float sum[BLOCK];
    int8_t *whole = (int8_t *)(out + sizeof(float));
    uint32_t most = 0;
    for (uint64_t i = 0; i < n; i++) {
        sum[i] = x[i] * scale_of_x + residual[i];
        uint32_t magnitude = bits_of_float(sum[i]) & 0x7fffffff;
        most = magnitude > most ? magnitude : most;
    }
    float largest = float_from_bits(most), scale = largest / 127.0f;
    if (most >= INFINITE || largest < LEAST) {
        scale = most >= INFINITE ? NAN : 0.0f;
        memset(whole, 0, n);
        for (uint64_t i = 0; i < n; i++) {
            /* What is not finite is told, and not kept. */
            if (most < INFINITE) residual[i] = sum[i];
            else if ((bits_of_float(residual[i]) & 0x7fffffff) >= INFINITE) residual[i] = 0.0f;
        }
    } else {
        const float inverse = 127.0f / largest;
        /* A scale that was rounded up may make the largest of all floats infinite. */
        if (bits_of_float(127.0f * scale) >= INFINITE)
            scale = float_from_bits(bits_of_float(scale) - 1);
        for (uint64_t i = 0; i < n; i++) {
            const float rounded = (sum[i] * inverse + ROUNDER) - ROUNDER;
            whole[i] = (int8_t)(int32_t)rounded;
            residual[i] = sum[i] - rounded * scale;
        }
    }
    memcpy(out, &scale, sizeof scale);
}

VECTOR static void encode_int8(const float *x, float scale, float *residual, uint64_t count,
                               char *out) {
    uint64_t at = 0;
    for (; at + BLOCK <= count; at += BLOCK, out += sizeof(float) + BLOCK) {
        for (uint64_t i = 0; i < BLOCK; i += 16) {
            __builtin_prefetch(x + at + AHEAD + i);
            __builtin_prefetch(residual + at + AHEAD + i, 1);
        }
        encode_block(x + at, scale, residual + at, BLOCK, out);
    }
    if (at < count) encode_block(x + at, scale, residual + at, count - at, out);
}

VECTOR static void decode_int8(const char *in, uint64_t count, float *to, int add) {
    for (uint64_t at = 0; at < count; at += BLOCK, in += sizeof(float) + BLOCK) {
        const uint64_t n = count - at < BLOCK ? count - at : BLOCK;
        const int8_t *whole = (const int8_t *)(in + sizeof(float));
        float scale;
        memcpy(&scale, in, sizeof scale);
        if (add)
            for (uint64_t i = 0; i < n; i++) to[at + i] += (float)whole[i] * scale;
        else
            for (uint64_t i = 0; i < n; i++) to[at + i] = (float)whole[i] * scale;
    }
}

static uint64_t bytes_int8(uint64_t count) {
    const uint64_t last = count % BLOCK, block = sizeof(float) + BLOCK;
    return count / BLOCK * block + (last ? sizeof(float) + padded(last) : 0);
}

/* A format in which each element is stored by itself. */
#define DEFINE_PLAIN(NAME, STORED, NARROW, WIDEN)                                              \
    VECTOR static void encode_##NAME(const float *x, float scale, float *residual,             \
                                     uint64_t count, char *out) {                              \
        (void)residual;                                                                        \
        for (uint64_t i = 0; i < count; i++) ((STORED *)out)[i] = NARROW(x[i] * scale);        \
    }                                                                                          \
    VECTOR static void decode_##NAME(const char *in, uint64_t count, float *to, int add) {     \
        const STORED *from = (const STORED *)in;                                               \
        if (add)                                                                               \
            for (uint64_t i = 0; i < count; i++) to[i] += WIDEN(from[i]);                      \
        else                                                                                   \
            for (uint64_t i = 0; i < count; i++) to[i] = WIDEN(from[i]);                       \
    }                                                                                          \
    static uint64_t bytes_##NAME(uint64_t count) { return padded(count * sizeof(STORED)); }

#define SAME(x) (x)
DEFINE_PLAIN(raw, float, SAME, SAME)
DEFINE_PLAIN(bfloat16, uint16_t, to_bfloat, from_bfloat)
DEFINE_PLAIN(float16, uint16_t, to_half, from_half)

#define ROW(NAME) {bytes_##NAME, encode_##NAME, decode_##NAME}
/* By the numbers of formats.py. */
static const struct {
    uint64_t (*bytes)(uint64_t count);
    void (*encode)(const float *x, float scale, float *residual, uint64_t count, char *out);
    void (*decode)(const char *in, uint64_t count, float *to, int add);
} FORMATS[] = {ROW(raw), ROW(bfloat16), ROW(float16), ROW(int8)};

/* How long the message of these runs is. */
uint64_t codec_bytes(const struct run *runs, uint64_t n_runs) {
    uint64_t bytes = 0;
    for (uint64_t i = 0; i < n_runs; i++) bytes += FORMATS[runs[i].format].bytes(runs[i].count);
    return bytes;
}

/* Write the message of scale * x + residual, and leave in the residual what it does not say.
 * Without a residual (NULL) no run may be int8. */
void codec_encode(const struct run *runs, uint64_t n_runs, const float *x, float scale,
                  float *residual, char *out) {
    for (const struct run *run = runs; run < runs + n_runs; run++) {
        float *kept = residual ? residual + run->begin : NULL;
        FORMATS[run->format].encode(x + run->begin, scale, kept, run->count, out);
        out += FORMATS[run->format].bytes(run->count);
    }
}

/* Write the elements of a message, or add them to what is there. */
void codec_decode(const struct run *runs, uint64_t n_runs, const char *in, float *to, int add) {
    for (const struct run *run = runs; run < runs + n_runs; run++) {
        FORMATS[run->format].decode(in, run->count, to + run->begin, add);
        in += FORMATS[run->format].bytes(run->count);
    }
}
