/* One kernel for all pieces of an exchange: each becomes a row of bytes, in this GPU's memory, in
 * a peer's or in pinned memory of the host. `moves.py` makes the table. No headers: CuPy compiles
 * this at run time, on machines that have no CUDA toolkit. */
typedef unsigned int u32;
typedef unsigned long long u64;

enum { DIMS = 6, ROW = 4 + 2 * DIMS };

template <typename Unit, typename Index>
static __device__ void copy(const u64 *row, u64 first, u64 step) {
    const char *source = (const char *)row[0];
    Unit *target = (Unit *)row[1];
    const u64 *lengths = row + 4, *strides = lengths + DIMS;
    int outermost = 0;
    while (outermost < DIMS && lengths[outermost] == 1) outermost++;
    for (u64 i = first; i < row[2]; i += step) {
        Index rest = (Index)i;
        u64 offset = 0;
        for (int dim = DIMS - 1; dim > outermost; dim--) {
            const Index length = (Index)lengths[dim];
            offset += rest % length * strides[dim];
            rest /= length;
        }
        if (outermost < DIMS) offset += rest * strides[outermost];
        target[i] = *(const Unit *)(source + offset);
    }
}

template <typename Unit>
static __device__ void copy_row(const u64 *row, u64 first, u64 step) {
    /* Divisions of 64 bits take several times as long. */
    if (row[2] >> 32)
        copy<Unit, u64>(row, first, step);
    else
        copy<Unit, u32>(row, first, step);
}

/* `each` blocks copy a row. */
extern "C" __global__ void move(const u64 *table, int each) {
    const u64 *row = table + (u64)(blockIdx.x / each) * ROW;
    const u64 first = (u64)(blockIdx.x % each) * blockDim.x + threadIdx.x;
    const u64 step = (u64)each * blockDim.x;
    switch (row[3]) {
    case 1: copy_row<unsigned char>(row, first, step); break;
    case 2: copy_row<unsigned short>(row, first, step); break;
    case 4: copy_row<u32>(row, first, step); break;
    case 8: copy_row<u64>(row, first, step); break;
    default: copy_row<uint4>(row, first, step);
    }
}
