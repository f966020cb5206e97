/* The kernels that combine arrays: one for each dtype and operation, from one macro table. */
#ifndef HVD_EXT_KERNELS_H
#define HVD_EXT_KERNELS_H

#include <stdint.h>

#include "floats.h"

enum { BLOCK_BYTES = 1024 };

/* A kernel combines `n_in` arrays in their order, so that the bits do not depend on
 * who combines, multiplies by `scale`, and writes the result to `n_out` arrays. It
 * works in blocks so short that those of all ranks stay in the first-level cache. 16-bit
 * floats are combined as 32-bit ones, and rounded once. Arrays may begin anywhere. */
typedef void kernel(const char *const *in, int n_in, char *const *out, int n_out,
                    uint64_t count, double scale);

#define SAME(x) (x)
#define TIMES(x) ((x) * factor)
#define ADD(a, b) ((a) + (b))
#define LESS(a, b) ((b) < (a) ? (b) : (a))
#define MORE(a, b) ((b) > (a) ? (b) : (a))
#define MULTIPLY(a, b) ((a) * (b))
/* The first of two NaN, which CPU and compiler would choose each as they like. */
#define ADD_HALVES(a, b) first_nan(a, (a) + (b))
#define MULTIPLY_HALVES(a, b) first_nan(a, (a) * (b))

static inline float first_nan(float a, float combined) { return a != a ? a : combined; }

#define DEFINE(NAME, STORED, HELD, LOAD, STORE, COMBINE, SCALE)                         \
    VECTOR static void NAME(const char *const *in, int n_in, char *const *out,          \
                            int n_out, uint64_t count, double scale) {                  \
        typedef STORED stored __attribute__((aligned(1)));                              \
        enum { BLOCK = BLOCK_BYTES / sizeof(HELD) };                                    \
        HELD held[BLOCK];                                                               \
        const HELD factor = (HELD)scale;                                                \
        (void)factor;                                                                   \
        for (uint64_t at = 0; at < count; at += BLOCK) {                                \
            const uint64_t n = count - at < BLOCK ? count - at : BLOCK;                 \
            const stored *a = (const stored *)in[0] + at;                               \
            if (n_in == 1)                                                              \
                for (uint64_t i = 0; i < n; i++) held[i] = LOAD(a[i]);                  \
            for (int r = 1; r < n_in; r++) {                                            \
                const stored *b = (const stored *)in[r] + at;                           \
                if (r == 1)                                                             \
                    for (uint64_t i = 0; i < n; i++)                                    \
                        held[i] = (HELD)COMBINE(LOAD(a[i]), LOAD(b[i]));                \
                else                                                                    \
                    for (uint64_t i = 0; i < n; i++)                                    \
                        held[i] = (HELD)COMBINE(held[i], LOAD(b[i]));                   \
            }                                                                           \
            for (int r = 0; r < n_out; r++) {                                           \
                stored *to = (stored *)out[r] + at;                                     \
                for (uint64_t i = 0; i < n; i++) to[i] = (STORED)STORE(SCALE(held[i])); \
            }                                                                           \
        }                                                                               \
    }

#define DEFINE_ALL(NAME, STORED, HELD, LOAD, STORE, SUM, PRODUCT, SCALE)                \
    DEFINE(sum_##NAME, STORED, HELD, LOAD, STORE, SUM, SCALE)                           \
    DEFINE(min_##NAME, STORED, HELD, LOAD, STORE, LESS, SCALE)                          \
    DEFINE(max_##NAME, STORED, HELD, LOAD, STORE, MORE, SCALE)                          \
    DEFINE(product_##NAME, STORED, HELD, LOAD, STORE, PRODUCT, SCALE)

DEFINE_ALL(float32, float, float, SAME, SAME, ADD, MULTIPLY, TIMES)
DEFINE_ALL(float64, double, double, SAME, SAME, ADD, MULTIPLY, TIMES)
DEFINE_ALL(float16, uint16_t, float, from_half, to_half, ADD_HALVES, MULTIPLY_HALVES, TIMES)
DEFINE_ALL(bfloat16, uint16_t, float, from_bfloat, to_bfloat, ADD_HALVES, MULTIPLY_HALVES, TIMES)
/* Whole numbers wrap around, as in MPI and numpy: compiled with -fwrapv, that is defined. */
DEFINE_ALL(int64, int64_t, int64_t, SAME, SAME, ADD, MULTIPLY, SAME)
DEFINE_ALL(int32, int32_t, int32_t, SAME, SAME, ADD, MULTIPLY, SAME)
DEFINE_ALL(int8, int8_t, int8_t, SAME, SAME, ADD, MULTIPLY, SAME)
DEFINE_ALL(uint8, uint8_t, uint8_t, SAME, SAME, ADD, MULTIPLY, SAME)

#define ROW(NAME) {sum_##NAME, min_##NAME, max_##NAME, product_##NAME}
/* In the order of DTYPES in dtypes.py and of OPERATIONS in window.py. */
static kernel *KERNELS[][4] = {ROW(float32), ROW(float64), ROW(float16), ROW(bfloat16),
                                     ROW(int64),   ROW(int32),   ROW(int8),    ROW(uint8)};
/* The sum by a binary tree over the arrays' numbers, whose bits do not depend on how the arrays
 * are divided among nodes: `summation_tree.py`. Partial sums are kept as a binary counter keeps its
 * digits. */
enum { TREE_SUM = 4, TREE_DEPTH = 32 };

#define DEFINE_TREE(TYPE)                                                               \
    VECTOR static void tree_sum_##TYPE(const char *const *in, int n_in,                 \
                                       char *const *out, int n_out, uint64_t count,     \
                                       double scale) {                                  \
        typedef TYPE stored __attribute__((aligned(1)));                                \
        enum { BLOCK = BLOCK_BYTES / sizeof(TYPE) };                                    \
        TYPE held[TREE_DEPTH][BLOCK];                                                   \
        const TYPE factor = (TYPE)scale;                                                \
        for (uint64_t at = 0; at < count; at += BLOCK) {                                \
            const uint64_t n = count - at < BLOCK ? count - at : BLOCK;                 \
            int last = -1;                                                              \
            for (int r = 0; r < n_in; r++) {                                            \
                memcpy(held[++last], (const stored *)in[r] + at, n * sizeof(TYPE));     \
                for (int carry = r; carry & 1; carry >>= 1, last--)                     \
                    for (uint64_t i = 0; i < n; i++) held[last - 1][i] += held[last][i]; \
            }                                                                           \
            for (int r = 0; r < n_out; r++) {                                           \
                stored *to = (stored *)out[r] + at;                                     \
                for (uint64_t i = 0; i < n; i++) to[i] = TIMES(held[0][i]);             \
            }                                                                           \
        }                                                                               \
    }

DEFINE_TREE(float)
DEFINE_TREE(double)

static inline kernel *kernel_of(int dtype, int operation) {
    if (operation != TREE_SUM) return KERNELS[dtype][operation];
    return dtype == 0 ? tree_sum_float : tree_sum_double;
}

static const int ITEM_BYTES[] = {4, 8, 2, 2, 8, 4, 1, 1};

#endif
