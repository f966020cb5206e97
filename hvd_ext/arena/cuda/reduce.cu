/* One kernel: a rank's share of a bucket, from the memory of all ranks into that of all.
 *
 * Ranks are added in their order in binary32 and the sum is rounded once, so the bits do
 * not depend on who adds, and are those of window.c. A share is whole lines of 64 bytes,
 * so it is read and written in pieces of 16. No headers: CuPy compiles this at run time,
 * on machines that have no CUDA toolkit. */
typedef unsigned int u32;
typedef unsigned long long u64;

#ifdef __CUDACC__
static __device__ float from_half(u32 bits) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"((unsigned short)bits));
    return value;
}

static __device__ u32 to_half(float value) {
    unsigned short bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
}

/* CuPy compiles with -ftz=true, which would make zeros of subnormal numbers. */
static __device__ float add(float a, float b) {
    float sum;
    asm("add.rn.f32 %0, %1, %2;" : "=f"(sum) : "f"(a), "f"(b));
    return sum;
}

static __device__ float times(float a, float b) {
    float product;
    asm("mul.rn.f32 %0, %1, %2;" : "=f"(product) : "f"(a), "f"(b));
    return product;
}
#endif

static __device__ u32 to_bfloat(float value) {
    u32 bits = __float_as_uint(value);
    u32 rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    return (bits & 0x7fffffff) > 0x7f800000u ? bits >> 16 | 0x40 : rounded;
}

/* How 32 bits hold one value or two, the first of which is the lower half. */
struct Float32 {
    enum { EACH = 1 };
    static __device__ void load(u32 bits, float *to) { to[0] = __uint_as_float(bits); }
    static __device__ u32 store(const float *from) { return __float_as_uint(from[0]); }
};

struct Float16 {
    enum { EACH = 2 };
    static __device__ void load(u32 bits, float *to) {
        to[0] = from_half(bits & 0xffff);
        to[1] = from_half(bits >> 16);
    }
    static __device__ u32 store(const float *from) {
        return to_half(from[0]) | to_half(from[1]) << 16;
    }
};

struct Bfloat16 {
    enum { EACH = 2 };
    static __device__ void load(u32 bits, float *to) {
        to[0] = __uint_as_float(bits << 16);
        to[1] = __uint_as_float(bits & 0xffff0000u);
    }
    static __device__ u32 store(const float *from) {
        return to_bfloat(from[0]) | to_bfloat(from[1]) << 16;
    }
};

template <typename Type>
static __device__ void reduce(uint4 *const *memory, int ranks, uint4 *const *into, int intos,
                              u64 first, u64 count, float scale) {
    enum { VALUES = 4 * Type::EACH };
    const u64 step = (u64)gridDim.x * blockDim.x;
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step) {
        float sum[VALUES];
        for (int rank = 0; rank < ranks; rank++) {
            const uint4 part = memory[rank][first + i];
            float value[VALUES];
            Type::load(part.x, value);
            Type::load(part.y, value + Type::EACH);
            Type::load(part.z, value + 2 * Type::EACH);
            Type::load(part.w, value + 3 * Type::EACH);
            for (int k = 0; k < VALUES; k++) sum[k] = rank ? add(sum[k], value[k]) : value[k];
        }
        for (int k = 0; k < VALUES; k++) sum[k] = times(sum[k], scale);
        uint4 result;
        result.x = Type::store(sum);
        result.y = Type::store(sum + Type::EACH);
        result.z = Type::store(sum + 2 * Type::EACH);
        result.w = Type::store(sum + 3 * Type::EACH);
        for (int k = 0; k < intos; k++) into[k][first + i] = result;
    }
}

/* `memory` is where every rank's arena begins, and `into` where those begin that get the result:
 * all of them, or this rank's alone. `first` and `count` are in 16 bytes. */
#define DEFINE(NAME, TYPE)                                                                       \
    extern "C" __global__ void reduce_##NAME(uint4 *const *memory, int ranks,                    \
                                             uint4 *const *into, int intos, u64 first,           \
                                             u64 count, float scale) {                           \
        reduce<TYPE>(memory, ranks, into, intos, first, count, scale);                           \
    }

DEFINE(float32, Float32)
DEFINE(float16, Float16)
DEFINE(bfloat16, Bfloat16)
