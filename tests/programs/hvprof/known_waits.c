/* The last rank sleeps before each of some collectives; prints for how long in all. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

int main(int argc, char **argv)
{
    enum { ROUNDS = 3, FLOATS = 100000 };
    int rank, size;
    double slept = 0;
    float *buffer = calloc(FLOATS, sizeof *buffer);
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    for (int round = 0; round < ROUNDS; round++) {
        MPI_Barrier(MPI_COMM_WORLD);
        if (rank == size - 1) {
            double before = MPI_Wtime();
            nanosleep(&(struct timespec){.tv_nsec = 200000000}, NULL);
            slept += MPI_Wtime() - before;
        }
        MPI_Allreduce(MPI_IN_PLACE, buffer, FLOATS, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    }
    if (rank == size - 1)
        printf("slept %.9f\n", slept);
    MPI_Finalize();
    return 0;
}
