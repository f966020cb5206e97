/* An allreduce of the MPI library whose choice of algorithms smpi/coll-selector names, simulated.

   Started by smpirun with message sizes in bytes. Each rank prints "RANK BYTES SECONDS" for each
   size. The first allreduce is a real one, in which SMPI makes the
   communicators that some libraries' algorithms need (library_introductions.c); after it messages
   are replayed, without data, so that all ranks can share their memory. */
#include <mpi.h>
#include <smpi/smpi.h>
#include <stdio.h>
#include <stdlib.h>

/* All of these are of all ranks: smpirun -no-privatize. */
static float *outgoing, *incoming;
extern int introductions_are_over __attribute__((weak));

int main(int argc, char *argv[])
{
    int rank, size;
    float one = 1, sum;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Allreduce(&one, &sum, 1, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    if (sum != size) {
        fprintf(stderr, "error: the sum over %d ranks is %g\n", size, sum);
        return 1;
    }
    long most = 0;
    for (int i = 1; i < argc; i++)
        most = atol(argv[i]) > most ? atol(argv[i]) : most;
    if (!outgoing) {
        outgoing = malloc(most);
        incoming = malloc(most);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    if (&introductions_are_over)
        introductions_are_over = 1;
    smpi_replay_init("smpirun", rank, 0);
    for (int i = 1; i < argc; i++) {
        long bytes = atol(argv[i]);
        MPI_Barrier(MPI_COMM_WORLD);
        double begin = MPI_Wtime();
        MPI_Allreduce(outgoing, incoming, bytes / 4, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        printf("%d %ld %.9f\n", rank, bytes, MPI_Wtime() - begin);
    }
    MPI_Finalize();
    return 0;
}
