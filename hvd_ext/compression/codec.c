/* What travels between nodes: gradients as fewer bytes.
 *
 * A message is a list of runs of elements, one after the other. A run travels in one of
 * these formats, each padded to 4 bytes:
 *   RAW       float32 as it is
 *   BFLOAT16, FLOAT16   2 bytes an element, rounded to nearest even
 *   INT8      blocks of 256 elements: a float32 scale, then a byte an element
 *
 * What INT8 rounds away is kept in a residual and is part of the next message (error
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
enum format { RAW, BFLOAT16, FLOAT16, INT8 };

struct run {
    uint64_t begin, count; /* elements, from the start of the message's part */
    int32_t format;
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

#define DEFINE_HALF(NAME, NARROW, WIDEN)                                                      \
    VECTOR static void encode_##NAME(const float *x, float scale, uint64_t count,             \
                                     uint16_t *out) {                                         \
        for (uint64_t i = 0; i < count; i++) out[i] = NARROW(x[i] * scale);                   \
    }                                                                                         \
    VECTOR static void decode_##NAME(const uint16_t *in, uint64_t count, float *to, int add) { \
        if (add)                                                                              \
            for (uint64_t i = 0; i < count; i++) to[i] += WIDEN(in[i]);                       \
        else                                                                                  \
            for (uint64_t i = 0; i < count; i++) to[i] = WIDEN(in[i]);                        \
    }

DEFINE_HALF(bfloat16, to_bfloat, from_bfloat)
DEFINE_HALF(float16, to_half, from_half)

VECTOR static void scale_float(const float *x, float scale, uint64_t count, float *out) {
    for (uint64_t i = 0; i < count; i++) out[i] = x[i] * scale;
}

VECTOR static void add_float(const float *x, uint64_t count, float *to) {
    for (uint64_t i = 0; i < count; i++) to[i] += x[i];
}

static uint64_t run_bytes(const struct run *run) {
    switch (run->format) {
    case RAW: return run->count * sizeof(float);
    case INT8: {
        const uint64_t last = run->count % BLOCK, block = sizeof(float) + BLOCK;
        return run->count / BLOCK * block + (last ? sizeof(float) + padded(last) : 0);
    }
    default: return padded(run->count * sizeof(uint16_t));
    }
}

/* How long the message of these runs is. */
uint64_t codec_bytes(const struct run *runs, uint64_t n_runs) {
    uint64_t bytes = 0;
    for (uint64_t i = 0; i < n_runs; i++) bytes += run_bytes(&runs[i]);
    return bytes;
}

/* Write the message of scale * x + residual, and leave in the residual what it does not say.
 * Without a residual (NULL) no run may be INT8. */
void codec_encode(const struct run *runs, uint64_t n_runs, const float *x, float scale,
                  float *residual, char *out) {
    for (uint64_t i = 0; i < n_runs; out += run_bytes(&runs[i]), i++) {
        const struct run run = runs[i];
        const float *from = x + run.begin;
        switch (run.format) {
        case RAW: scale_float(from, scale, run.count, (float *)out); break;
        case BFLOAT16: encode_bfloat16(from, scale, run.count, (uint16_t *)out); break;
        case FLOAT16: encode_float16(from, scale, run.count, (uint16_t *)out); break;
        case INT8: encode_int8(from, scale, residual + run.begin, run.count, out); break;
        }
    }
}

/* Write the elements of a message, or add them to what is there. */
void codec_decode(const struct run *runs, uint64_t n_runs, const char *in, float *to, int add) {
    for (uint64_t i = 0; i < n_runs; in += run_bytes(&runs[i]), i++) {
        const struct run run = runs[i];
        float *here = to + run.begin;
        switch (run.format) {
        case RAW:
            if (add) add_float((const float *)in, run.count, here);
            else memcpy(here, in, run.count * sizeof(float));
            break;
        case BFLOAT16: decode_bfloat16((const uint16_t *)in, run.count, here, add); break;
        case FLOAT16: decode_float16((const uint16_t *)in, run.count, here, add); break;
        case INT8: decode_int8(in, run.count, here, add); break;
        }
    }
}
