/* The same, from C: a program that is linked with its MPI, with counts of either width. */
#include <mpi.h>
#include <stdlib.h>

int main(int argc, char **argv)
{
    double buffer[1000] = {0};
    MPI_Comm dup;
    MPI_Init(&argc, &argv);
    for (int i = 0; i < 5; i++)
        MPI_Allreduce(MPI_IN_PLACE, buffer, 1000, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
#if MPI_VERSION >= 4
    MPI_Allreduce_c(MPI_IN_PLACE, buffer, 1000, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
#else
    MPI_Allreduce(MPI_IN_PLACE, buffer, 1000, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
#endif
    MPI_Bcast(buffer, 10, MPI_BYTE, 0, MPI_COMM_WORLD);
    MPI_Comm_dup(MPI_COMM_WORLD, &dup);
    MPI_Comm_set_name(dup, "hvd_ext c");
    MPI_Barrier(dup);
    MPI_Comm_free(&dup);
    MPI_Finalize();
    return 0;
}
