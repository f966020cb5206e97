/* Two ranks with requests that are easily mistaken for others: thousands at once, some that are
 * canceled, and some whose handle then belongs to a generalized request. */
#include <mpi.h>
#include <stddef.h>

enum { MANY = 3000, ROUNDS = 2, TURNS = 200, NOWHERE = 1 << 28 };

static char data[2 * MANY][16];
static MPI_Request requests[2 * MANY];

/* The status of a generalized request has no source: it may hold any number. */
static int describe(void *state, MPI_Status *status)
{
    (void)state;
    MPI_Status_set_elements(status, MPI_CHAR, 0);
    MPI_Status_set_cancelled(status, 0);
    status->MPI_SOURCE = NOWHERE;
    return MPI_SUCCESS;
}

static int release(void *state)
{
    (void)state;
    return MPI_SUCCESS;
}

static int cancel(void *state, int complete)
{
    (void)state;
    (void)complete;
    return MPI_SUCCESS;
}

static void many(int other)
{
    for (int i = 0; i < MANY; i++) {
        MPI_Recv_init(data[i], 16, MPI_CHAR, other, i, MPI_COMM_WORLD, &requests[i]);
        MPI_Send_init(data[MANY + i], 16, MPI_CHAR, other, i, MPI_COMM_WORLD, &requests[MANY + i]);
    }
    for (int round = 0; round < ROUNDS; round++) {
        MPI_Startall(2 * MANY, requests);
        MPI_Waitall(2 * MANY, requests, MPI_STATUSES_IGNORE);
    }
    for (int i = 0; i < 2 * MANY; i++)
        MPI_Request_free(&requests[i]);
}

int main(int argc, char **argv)
{
    int rank, refused;
    char one = 0;
    MPI_Comm alone;
    MPI_Request request;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    many(1 - rank);
    MPI_Comm_split(MPI_COMM_WORLD, rank, 0, &alone);
    for (int turn = 0; turn < TURNS; turn++) {
        /* Rank 0's status of it has a rank that `alone` has not. */
        if (rank == 1)
            MPI_Send(&one, 1, MPI_CHAR, 0, 1, MPI_COMM_WORLD);
        else
            MPI_Recv(&one, 1, MPI_CHAR, MPI_ANY_SOURCE, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        MPI_Irecv(&one, 1, MPI_CHAR, MPI_ANY_SOURCE, 2, alone, &request);
        MPI_Cancel(&request);
        MPI_Wait(&request, MPI_STATUS_IGNORE);
        MPI_Irecv(&one, 1, MPI_CHAR, MPI_ANY_SOURCE, 2, alone, &request);
        MPI_Cancel(&request);
        MPI_Request_free(&request);
        MPI_Grequest_start(describe, release, cancel, NULL, &request);
        MPI_Grequest_complete(request);
        MPI_Waitany(1, &request, &refused, MPI_STATUS_IGNORE);
    }
    MPI_Comm_free(&alone);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
    refused = MPI_Wait(NULL, MPI_STATUS_IGNORE) && MPI_Waitall(2, NULL, MPI_STATUSES_IGNORE);
    MPI_Finalize();
    return !refused;
}
