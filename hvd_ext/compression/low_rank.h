/* PowerSGD's passes over a matrix, which is approximated by left * right, each of `rank` vectors.
 *
 * p (rows x columns) is what this node sends: its share and what it has not sent yet. `left`
 * holds `rank` vectors of `rows` elements, `right` as many of `columns`. What all nodes compute
 * alike (low_rank_orthonormalise, low_rank_apply) is rounded once an operation, in a fixed order.
 */
#include <math.h>
#include <stdint.h>

enum { WIDTH = 512, LANES = 16 };

/* residual += share; right = p^T left. */
VECTOR void low_rank_to_right(const float *share, float *residual, uint64_t rows, uint64_t columns,
                              uint64_t rank, const float *left, float *right) {
    memset(right, 0, rank * columns * sizeof(float));
    for (uint64_t from = 0; from < columns; from += WIDTH) {
        const uint64_t n = columns - from < WIDTH ? columns - from : WIDTH;
        for (uint64_t row = 0; row < rows; row++) {
            const float *s = share + row * columns + from;
            float *p = residual + row * columns + from;
            for (uint64_t j = 0; j < n; j++) p[j] += s[j];
            for (uint64_t k = 0; k < rank; k++) {
                const float factor = left[k * rows + row];
                float *out = right + k * columns + from;
                for (uint64_t j = 0; j < n; j++) out[j] += factor * p[j];
            }
        }
    }
}

/* residual += share; left = p right. */
VECTOR void low_rank_to_left(const float *share, float *residual, uint64_t rows, uint64_t columns,
                             uint64_t rank, const float *right, float *left) {
    for (uint64_t row = 0; row < rows; row++) {
        const float *s = share + row * columns;
        float *p = residual + row * columns;
        for (uint64_t j = 0; j < columns; j++) p[j] += s[j];
        for (uint64_t k = 0; k < rank; k++) {
            const float *of = right + k * columns;
            float lanes[LANES] = {0}, sum = 0;
            uint64_t j = 0;
            for (; j + LANES <= columns; j += LANES)
                for (int lane = 0; lane < LANES; lane++) lanes[lane] += p[j + lane] * of[j + lane];
            for (; j < columns; j++) sum += p[j] * of[j];
            for (int lane = 0; lane < LANES; lane++) sum += lanes[lane];
            left[k * rows + row] = sum;
        }
    }
}

static inline __attribute__((always_inline)) int is_finite(float value) {
    return (bits_of_float(value) & 0x7fffffff) < 0x7f800000u;
}

/* share = left right; residual = p - that / nodes, or, where that is not finite, what it was. */
VECTOR void low_rank_apply(float *share, float *residual, uint64_t rows, uint64_t columns,
                           uint64_t rank, float inverse_nodes, const float *left,
                           const float *right) {
    float sum[WIDTH];
    for (uint64_t from = 0; from < columns; from += WIDTH) {
        const uint64_t n = columns - from < WIDTH ? columns - from : WIDTH;
        for (uint64_t row = 0; row < rows; row++) {
            float *s = share + row * columns + from, *p = residual + row * columns + from;
            for (uint64_t j = 0; j < n; j++) sum[j] = left[row] * right[from + j];
            for (uint64_t k = 1; k < rank; k++) {
                const float factor = left[k * rows + row];
                const float *of = right + k * columns + from;
                for (uint64_t j = 0; j < n; j++) sum[j] += factor * of[j];
            }
            for (uint64_t j = 0; j < n; j++) {
                const float rest = p[j] - sum[j] * inverse_nodes, before = p[j] - s[j];
                p[j] = is_finite(rest) ? rest : is_finite(before) ? before : 0.0f;
                s[j] = sum[j];
            }
        }
    }
}

static double dot(const float *a, const float *b, uint64_t n) {
    double lanes[8] = {0}, sum = 0;
    for (uint64_t i = 0; i < n; i++) lanes[i % 8] += (double)a[i] * b[i];
    for (int lane = 0; lane < 8; lane++) sum += lanes[lane];
    return sum;
}

/* Take off a vector's components along those before it; returns what is left of its length. */
static double reduce_vector(float *vectors, uint64_t n, uint64_t k) {
    float *v = vectors + k * n;
    for (uint64_t other = 0; other < k; other++) {
        const float *of = vectors + other * n;
        const double along = dot(v, of, n);
        for (uint64_t i = 0; i < n; i++) v[i] = (float)(v[i] - along * of[i]);
    }
    return sqrt(dot(v, v, n));
}

/* Make `rank` vectors of n elements orthonormal: Gram-Schmidt, twice, in float64. One that is
 * zero, not finite, or depends on those before it is replaced by a fixed one. */
void low_rank_orthonormalise(float *vectors, uint64_t n, uint64_t rank) {
    for (uint64_t k = 0; k < rank; k++) {
        float *v = vectors + k * n;
        for (uint32_t attempt = 0; attempt < 8; attempt++) {
            const double before = sqrt(dot(v, v, n));
            for (uint64_t i = 0; before > 0 && before < INFINITY && i < n; i++)
                v[i] = (float)(v[i] / before);
            const double first = reduce_vector(vectors, n, k);
            if (before > 0 && before < INFINITY && first > 1e-4) {
                for (uint64_t i = 0; i < n; i++) v[i] = (float)(v[i] / first);
                const double second = reduce_vector(vectors, n, k);
                for (uint64_t i = 0; i < n; i++) v[i] = (float)(v[i] / second);
                break;
            }
            for (uint64_t i = 0; i < n; i++) {
                uint32_t bits = (uint32_t)(i + 1) * 2654435761u ^ (uint32_t)(k + 1) * 40503u ^
                                (attempt + 1) * 2246822519u;
                bits ^= bits >> 15;
                bits *= 2246822519u;
                bits ^= bits >> 13;
                v[i] = (float)(int32_t)bits * 0x1p-31f;
            }
        }
    }
}
