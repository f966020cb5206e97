/* Communicates in every way that hvprof counts, by amounts that tests know. */
#include <mpi.h>
#include <stdlib.h>

static int rank, size;
static MPI_Comm world;
static MPI_Request request;
static char *many;
static double *all;
static int *threes, *places;

static void reductions(void)
{
    static const int edges[] = {0, 1, 2, 3, 1023, 1024, 1025, 131072, 131073, 1048577};
    int pair[2] = {1, 1}, result[2], *vector = calloc(2 * size, sizeof *vector);
    int *counts = malloc(size * sizeof *counts);
    float floats[20] = {0};
    MPI_Datatype floats2;
    for (size_t i = 0; i < sizeof edges / sizeof *edges; i++)
        MPI_Allreduce(MPI_IN_PLACE, many, edges[i], MPI_UNSIGNED_CHAR, MPI_MAX, world);
#if MPI_VERSION >= 4
    MPI_Allreduce_c(MPI_IN_PLACE, many, 8, MPI_UNSIGNED_CHAR, MPI_MAX, world);
#else
    MPI_Allreduce(MPI_IN_PLACE, many, 8, MPI_UNSIGNED_CHAR, MPI_MAX, world);
#endif
    MPI_Type_contiguous(2, MPI_FLOAT, &floats2);
    MPI_Type_commit(&floats2);
    MPI_Bcast(floats, 10, floats2, 0, world);
    MPI_Type_free(&floats2);
    MPI_Reduce(pair, result, 2, MPI_INT, MPI_SUM, size - 1, world);
    MPI_Scan(pair, result, 2, MPI_INT, MPI_SUM, world);
    MPI_Exscan(pair, result, 2, MPI_INT, MPI_SUM, world);
    MPI_Reduce_scatter_block(vector, result, 2, MPI_INT, MPI_SUM, world);
    for (int i = 0; i < size; i++)
        counts[i] = i == 0 ? 2 : 1;
    MPI_Reduce_scatter(vector, result, counts, MPI_INT, MPI_SUM, world);
    MPI_Iallreduce(MPI_IN_PLACE, pair, 2, MPI_INT, MPI_SUM, world, &request);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    free(vector);
    free(counts);
}

static void movements(void)
{
    double three[3] = {0}, *other = calloc(3 * size, sizeof *other);
    int *bytes = malloc(size * sizeof *bytes);
    MPI_Datatype *types = malloc(size * sizeof *types);
    const void *mine = rank == 0 ? MPI_IN_PLACE : three;
    void *to_me = rank == 0 ? MPI_IN_PLACE : three;
    MPI_Bcast(three, 3, MPI_DOUBLE, 0, world);
    MPI_Allgather(three, 3, MPI_DOUBLE, all, 3, MPI_DOUBLE, world);
    MPI_Allgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, all, 3, MPI_DOUBLE, world);
    MPI_Allgatherv(three, 3, MPI_DOUBLE, all, threes, places, MPI_DOUBLE, world);
    MPI_Gather(mine, 3, MPI_DOUBLE, all, 3, MPI_DOUBLE, 0, world);
    MPI_Gatherv(mine, 3, MPI_DOUBLE, all, threes, places, MPI_DOUBLE, 0, world);
    MPI_Scatter(all, 3, MPI_DOUBLE, to_me, 3, MPI_DOUBLE, 0, world);
    MPI_Scatterv(all, threes, places, MPI_DOUBLE, three, 3, MPI_DOUBLE, 0, world);
    MPI_Alltoall(all, 3, MPI_DOUBLE, other, 3, MPI_DOUBLE, world);
    MPI_Alltoallv(all, threes, places, MPI_DOUBLE, other, threes, places, MPI_DOUBLE, world);
    MPI_Alltoallv(MPI_IN_PLACE, NULL, NULL, MPI_DATATYPE_NULL, other, threes, places, MPI_DOUBLE,
                  world);
    for (int i = 0; i < size; i++) {
        bytes[i] = 24 * i;
        types[i] = (i + rank) % 2 ? MPI_INT64_T : MPI_DOUBLE;
    }
    MPI_Alltoallw(all, threes, bytes, types, other, threes, bytes, types, world);
    MPI_Alltoallw(MPI_IN_PLACE, NULL, NULL, NULL, other, threes, bytes, types, world);
    MPI_Ialltoallw(all, threes, bytes, types, other, threes, bytes, types, world, &request);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    MPI_Ibcast(three, 3, MPI_DOUBLE, 0, world, &request);
    MPI_Waitall(1, &request, MPI_STATUSES_IGNORE);
    MPI_Barrier(world);
    MPI_Ibarrier(world, &request);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    free(other);
    free(bytes);
    free(types);
}

static void messages(void)
{
    int left = (rank + size - 1) % size, right = (rank + 1) % size, index;
    short sent[5] = {0}, received[5];
    MPI_Sendrecv(sent, 5, MPI_SHORT, right, 7, received, 5, MPI_SHORT, left, 7, world,
                 MPI_STATUS_IGNORE);
    MPI_Irecv(received, 5, MPI_SHORT, left, 7, world, &request);
    MPI_Send(sent, 5, MPI_SHORT, right, 7, world);
    MPI_Waitany(1, &request, &index, MPI_STATUS_IGNORE);
    MPI_Isend(sent, 5, MPI_SHORT, right, 7, world, &request);
    MPI_Recv(received, 5, MPI_SHORT, left, 7, world, MPI_STATUS_IGNORE);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    /* With the tag and type of hvd_ext's roll calls. */
    MPI_Sendrecv(sent, 4, MPI_BYTE, right, 24301, received, 4, MPI_BYTE, left, 24301, world,
                 MPI_STATUS_IGNORE);
}

static void communicators(void)
{
    MPI_Comm half, dup, again;
    MPI_Group group;
    int first = 0;
    MPI_Comm_split(world, rank % 2, 0, &half);
    MPI_Barrier(half);
    MPI_Comm_dup(half, &dup);
    MPI_Barrier(dup);
    MPI_Comm_free(&half);
    MPI_Comm_set_name(dup, "hvd_ext c");
    MPI_Barrier(dup);
    MPI_Comm_free(&dup);
    MPI_Comm_dup(world, &again); /* a handle of those that are gone */
    MPI_Barrier(again);
    MPI_Comm_free(&again);
    MPI_Comm_group(world, &group);
    MPI_Group_incl(group, 1, &first, &group);
    MPI_Comm_create(world, group, &again);
    MPI_Group_free(&group);
    if (again != MPI_COMM_NULL) {
        MPI_Barrier(again);
        MPI_Comm_free(&again);
    }
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    world = MPI_COMM_WORLD;
    MPI_Comm_rank(world, &rank);
    MPI_Comm_size(world, &size);
    many = calloc(1048577, 1);
    all = calloc(3 * size, sizeof *all);
    threes = malloc(size * sizeof *threes);
    places = malloc(size * sizeof *places);
    for (int i = 0; i < size; i++) {
        threes[i] = 3;
        places[i] = 3 * i;
    }
    reductions();
    movements();
    messages();
    communicators();
    MPI_Finalize();
    return 0;
}
