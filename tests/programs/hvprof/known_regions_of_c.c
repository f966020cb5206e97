/* Marks regions and steps by hvprof.h, in C and in C++, and leaves sums out by MPI_Pcontrol. */
#include <hvprof.h>
#include <mpi.h>

int main(int argc, char **argv)
{
    double x = 1, y;
    MPI_Init(&argc, &argv);
    for (int i = 0; i < 3; i++) {
        hvprof_region_begin("solver", HVPROF_COMPUTE);
        hvprof_region_begin("output", HVPROF_IO);
        hvprof_region_end();
        hvprof_region_end();
        MPI_Allreduce(&x, &y, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
        MPI_Pcontrol(0);
        MPI_Allreduce(&x, &y, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
        MPI_Pcontrol(1);
        hvprof_step();
    }
    MPI_Finalize();
    return 0;
}
