/* MPI_Allreduce, of whatever MPI library it is compiled with. */
#define _GNU_SOURCE
#include "timed.h"

static MPI_Datatype types[FORMATS];

static void prepare(int rank, int size)
{
    (void)rank, (void)size;
    types[FLOAT32] = MPI_FLOAT;
    types[BFLOAT16] = types[FLOAT16] = MPI_DATATYPE_NULL;
    /* Extensions of MPICH and Intel MPI. */
#ifdef MPIX_BFLOAT16
    types[BFLOAT16] = MPIX_BFLOAT16;
#endif
#ifdef MPIX_C_FLOAT16
    types[FLOAT16] = MPIX_C_FLOAT16;
#endif
}

static int allreduce(void *buffer, size_t count, enum format format)
{
    if (types[format] == MPI_DATATYPE_NULL)
        return 1;
    return MPI_Allreduce(MPI_IN_PLACE, buffer, (int)count, types[format], MPI_SUM, MPI_COMM_WORLD);
}
