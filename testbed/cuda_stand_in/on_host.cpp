/* What the kernels (reduce.cu, move.cu) take for granted of CUDA, so that its kernels run thread by thread on the
 * host. Half precision, which the GPU converts by instructions, is converted by arithmetic.
 * kernels.cu is the source that is compiled. */
#include <cmath>
#include <cstring>

#define __device__
#define __global__

struct uint4 {
    unsigned x, y, z, w;
};
static thread_local struct {
    unsigned x;
} gridDim, blockDim, blockIdx, threadIdx;

static float __uint_as_float(unsigned bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static unsigned __float_as_uint(float value) {
    unsigned bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static float add(float a, float b) { return a + b; }

static float times(float a, float b) { return a * b; }

static float from_half(unsigned bits) {
    int exponent = bits >> 10 & 31, fraction = bits & 1023;
    double value = exponent == 31 ? (fraction ? NAN : INFINITY)
                   : exponent     ? std::ldexp(1024 + fraction, exponent - 25)
                                  : std::ldexp(fraction, -24);
    return (float)(bits >> 15 ? -value : value);
}

static unsigned to_half(float value) {
    unsigned sign = std::signbit(value) ? 0x8000 : 0;
    if (std::isnan(value)) return sign | 0x7e00;
    if (std::isinf(value)) return sign | 0x7c00;
    int exponent;
    std::frexp(value, &exponent);
    if (value == 0 || exponent < -13) exponent = -13; /* too small for a leading 1 */
    unsigned digits = (unsigned)std::nearbyint(std::ldexp(std::fabs((double)value), 11 - exponent));
    if (digits == 2048) digits = 1024, exponent++;
    if (exponent > 16) return sign | 0x7c00;
    return digits < 1024 ? sign | digits : sign | (exponent + 14) << 10 | (digits - 1024);
}

#include "kernels.cu"

typedef void moving(const u64 *, int);

extern "C" void run_move(moving *launched, unsigned blocks, unsigned threads, const u64 *table,
                         int each) {
    gridDim.x = blocks;
    blockDim.x = threads;
    for (blockIdx.x = 0; blockIdx.x < blocks; blockIdx.x++)
        for (threadIdx.x = 0; threadIdx.x < threads; threadIdx.x++) launched(table, each);
}

typedef void kernel(uint4 *const *, int, uint4 *const *, int, u64, u64, float);

extern "C" void run(kernel *launched, unsigned blocks, unsigned threads, uint4 *const *memory,
                    int ranks, uint4 *const *into, int intos, u64 first, u64 count, float scale) {
    gridDim.x = blocks;
    blockDim.x = threads;
    for (blockIdx.x = 0; blockIdx.x < blocks; blockIdx.x++)
        for (threadIdx.x = 0; threadIdx.x < threads; threadIdx.x++)
            launched(memory, ranks, into, intos, first, count, scale);
}
