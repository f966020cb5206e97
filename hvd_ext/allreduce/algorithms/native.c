/* MPI_Allreduce with its arguments at hand.
 *
 * From Python each argument of a call costs time; this one has a single one. It needs no mpi.h,
 * so that one build serves every MPI library: handles are numbers in MPICH's ABI, which Intel MPI
 * and MVAPICH share, and pointers in Open MPI's.
 */
#include <stdint.h>

typedef int (*by_number)(const void *, void *, int, int, int, int);
typedef int (*by_pointer)(const void *, void *, int, void *, void *, void *);

union handle {
    int number;
    void *pointer;
};

struct call {
    union {
        by_number by_number;
        by_pointer by_pointer;
    } allreduce;
    const void *in_place;
    void *buffer;
    union handle type, operation, comm;
    int32_t count;
    int32_t pointers; /* whether handles are */
};

/* Returns MPI's error code, 0 if there is none. */
int native_allreduce(const struct call *c) {
    if (c->pointers)
        return c->allreduce.by_pointer(c->in_place, c->buffer, c->count, c->type.pointer,
                                       c->operation.pointer, c->comm.pointer);
    return c->allreduce.by_number(c->in_place, c->buffer, c->count, c->type.number,
                                  c->operation.number, c->comm.number);
}
