/* Messages of every kind between three ranks, each round the same; prints what rank 2 slept
 * before it sent (to rank 1), and before it received (from rank 0). */
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

/* No library sends so much before it is received: Intel MPI does 1 MiB. */
enum { LATE = 4, LARGE = 1 << 21 };
static const MPI_Comm *world;
static int rank;

static double slept(void)
{
    double before = MPI_Wtime();
    nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL);
    return MPI_Wtime() - before;
}

/* Rank 0 passes a message on to 1 in each way there is. */
static void kinds(void)
{
    char data[8] = {0}, more[8] = {0};
    MPI_Request request;
    MPI_Message message;
    int index, done, found = 0;
    if (rank == 0) {
        MPI_Ssend(data, 8, MPI_CHAR, 1, 1, *world);
        MPI_Send_init(data, 8, MPI_CHAR, 1, 2, *world, &request);
        for (int i = 0; i < 2; i++) {
            MPI_Start(&request);
            MPI_Wait(&request, MPI_STATUS_IGNORE);
        }
        MPI_Request_free(&request);
        MPI_Issend(data, 8, MPI_CHAR, 1, 3, *world, &request);
        MPI_Waitsome(1, &request, &done, &index, MPI_STATUSES_IGNORE);
        MPI_Send(data, 8, MPI_CHAR, 1, 4, *world);
        MPI_Send(data, 8, MPI_CHAR, 1, 5, *world);
    } else if (rank == 1) {
        MPI_Recv(data, 8, MPI_CHAR, MPI_ANY_SOURCE, 1, *world, MPI_STATUS_IGNORE);
        MPI_Recv_init(data, 8, MPI_CHAR, 0, 2, *world, &request);
        for (int i = 0; i < 2; i++) {
            MPI_Startall(1, &request);
            MPI_Wait(&request, MPI_STATUS_IGNORE);
        }
        MPI_Request_free(&request);
        MPI_Irecv(data, 8, MPI_CHAR, MPI_ANY_SOURCE, 3, *world, &request);
        MPI_Wait(&request, MPI_STATUS_IGNORE);
        MPI_Probe(MPI_ANY_SOURCE, 4, *world, MPI_STATUS_IGNORE);
        MPI_Recv(data, 8, MPI_CHAR, 0, 4, *world, MPI_STATUS_IGNORE);
        while (!found)
            MPI_Iprobe(0, 5, *world, &found, MPI_STATUS_IGNORE);
        MPI_Mprobe(0, 5, *world, &message, MPI_STATUS_IGNORE);
        MPI_Mrecv(data, 8, MPI_CHAR, &message, MPI_STATUS_IGNORE);
    }
    MPI_Sendrecv(data, 8, MPI_CHAR, (rank + 1) % 3, 6, more, 8, MPI_CHAR, (rank + 2) % 3, 6,
                 *world, MPI_STATUS_IGNORE);
    MPI_Sendrecv_replace(data, 8, MPI_CHAR, (rank + 1) % 3, 7, (rank + 2) % 3, 7, *world,
                         MPI_STATUS_IGNORE);
}

static void one_sided(void)
{
    _Alignas(8) char there[24] = {0};
    char here[8] = {0};
    int64_t one = 1, zero = 0, before;
    MPI_Win window;
    MPI_Win_create(there, sizeof there, 1, MPI_INFO_NULL, *world, &window);
    MPI_Win_fence(0, window);
    MPI_Put(here, 8, MPI_CHAR, (rank + 1) % 3, 0, 8, MPI_CHAR, window);
    MPI_Win_fence(0, window);
    MPI_Win_lock(MPI_LOCK_SHARED, 0, 0, window);
    MPI_Get(here, 8, MPI_CHAR, 0, 16, 8, MPI_CHAR, window);
    MPI_Win_unlock(0, window);
    MPI_Win_lock_all(0, window);
    MPI_Get_accumulate(&one, 1, MPI_INT64_T, &before, 1, MPI_INT64_T, 0, 8, 1, MPI_INT64_T, MPI_SUM,
                       window);
    MPI_Win_flush_local(0, window);
    MPI_Fetch_and_op(&one, &before, MPI_INT64_T, 0, 8, MPI_SUM, window);
    MPI_Win_flush_local_all(window);
    MPI_Compare_and_swap(&one, &zero, &before, MPI_INT64_T, 0, 8, window);
    MPI_Win_unlock_all(window);
    MPI_Win_free(&window);
}

int main(int argc, char **argv)
{
    double before_send = 0, before_receive = 0;
    char *large = calloc(LARGE, 1);
    MPI_Comm turned, duplicate;
    MPI_Init(&argc, &argv);
    MPI_Comm_dup(MPI_COMM_WORLD, &duplicate);
    world = &duplicate;
    MPI_Comm_rank(*world, &rank);
    kinds();
    one_sided();
    /* Ranks of this communicator are not those of the world: 2, 1, 0. */
    MPI_Comm_split(MPI_COMM_WORLD, 0, -rank, &turned);
    world = &turned;
    MPI_Barrier(turned);
    for (int round = 0; round < LATE; round++) {
        if (rank == 2) {
            before_send += slept();
            MPI_Send(large, 8, MPI_CHAR, 1, 8, turned);
            before_receive += slept();
            MPI_Recv(large, LARGE, MPI_CHAR, 2, 9, turned, MPI_STATUS_IGNORE);
        } else if (rank == 1) {
            MPI_Recv(large, 8, MPI_CHAR, 0, 8, turned, MPI_STATUS_IGNORE);
        } else {
            MPI_Send(large, LARGE, MPI_CHAR, 0, 9, turned);
        }
        MPI_Barrier(turned);
    }
    if (rank == 2)
        printf("%.9f %.9f\n", before_send, before_receive);
    MPI_Finalize();
    return 0;
}
