/* What MPI 4 and its neighbors have: persistent and partitioned communication, sessions, large counts
 * (with -DLARGE), neighborhoods, requests of windows, and files. Counts its calls itself, and writes
 * each rank's counts to the file "counts-RANK". With an argument it starts MPI by a session. */
#include <mpi.h>
#include <stdio.h>
#include <string.h>

static struct {
    const char *name;
    int calls;
    long bytes;
} counted[128];

static void did(const char *name, long bytes)
{
    int i = 0;
    while (counted[i].name && strcmp(counted[i].name, name))
        i++;
    counted[i].name = name;
    counted[i].calls++;
    counted[i].bytes += bytes;
}

static double x[64], y[64];
static MPI_Comm comm;
static int rank, ranks;

static void persistent(void)
{
    MPI_Request request;
    MPI_Allreduce_init(x, y, 4, MPI_DOUBLE, MPI_SUM, comm, MPI_INFO_NULL, &request);
    did("allreduce_init", 0);
    for (int i = 0; i < 2; i++) {
        MPI_Start(&request), did("start", 32);
        MPI_Wait(&request, MPI_STATUS_IGNORE), did("wait", 0);
    }
    MPI_Request_free(&request), did("request_free", 0);
}

/* A persistent collective, from its beginning to its end. */
#define PERSISTS(low, BYTES, ...)                                                              \
    do {                                                                                       \
        MPI_Request request;                                                                   \
        __VA_ARGS__, did(#low "_init", 0);                                                     \
        MPI_Start(&request), did("start", BYTES);                                              \
        MPI_Wait(&request, MPI_STATUS_IGNORE), did("wait", 0);                                 \
        MPI_Request_free(&request), did("request_free", 0);                                    \
    } while (0)
#define LAST comm, MPI_INFO_NULL, &request
#define ON_GRID grid, MPI_INFO_NULL, &request

enum { MOST_RANKS = 16 };
static int ones[MOST_RANKS], places[MOST_RANKS], byte_places[MOST_RANKS];
static MPI_Aint far_places[MOST_RANKS];
static MPI_Datatype types[MOST_RANKS];

static void every_persistent(void)
{
    int whole = 8 * ranks, periodic = 1;
    MPI_Comm grid;
    for (int i = 0; i < ranks; i++) {
        ones[i] = 1, places[i] = i, byte_places[i] = 8 * i, far_places[i] = 8 * i;
        types[i] = MPI_DOUBLE;
    }
    PERSISTS(barrier, 0, MPI_Barrier_init(LAST));
    PERSISTS(bcast, 8, MPI_Bcast_init(x, 1, MPI_DOUBLE, 0, LAST));
    PERSISTS(reduce, 8, MPI_Reduce_init(x, y, 1, MPI_DOUBLE, MPI_SUM, 0, LAST));
    PERSISTS(scan, 8, MPI_Scan_init(x, y, 1, MPI_DOUBLE, MPI_SUM, LAST));
    PERSISTS(exscan, 8, MPI_Exscan_init(x, y, 1, MPI_DOUBLE, MPI_SUM, LAST));
    PERSISTS(gather, 8, MPI_Gather_init(x, 1, MPI_DOUBLE, y, 1, MPI_DOUBLE, 0, LAST));
    PERSISTS(gatherv, 8,
             MPI_Gatherv_init(x, 1, MPI_DOUBLE, y, ones, places, MPI_DOUBLE, 0, LAST));
    PERSISTS(scatter, 8, MPI_Scatter_init(x, 1, MPI_DOUBLE, y, 1, MPI_DOUBLE, 0, LAST));
    PERSISTS(scatterv, 8,
             MPI_Scatterv_init(x, ones, places, MPI_DOUBLE, y, 1, MPI_DOUBLE, 0, LAST));
    PERSISTS(allgather, whole, MPI_Allgather_init(x, 1, MPI_DOUBLE, y, 1, MPI_DOUBLE, LAST));
    PERSISTS(allgatherv, whole,
             MPI_Allgatherv_init(x, 1, MPI_DOUBLE, y, ones, places, MPI_DOUBLE, LAST));
    PERSISTS(reduce_scatter, whole,
             MPI_Reduce_scatter_init(x, y, ones, MPI_DOUBLE, MPI_SUM, LAST));
    PERSISTS(reduce_scatter_block, whole,
             MPI_Reduce_scatter_block_init(x, y, 1, MPI_DOUBLE, MPI_SUM, LAST));
    PERSISTS(alltoall, whole, MPI_Alltoall_init(x, 1, MPI_DOUBLE, y, 1, MPI_DOUBLE, LAST));
    PERSISTS(alltoallv, whole,
             MPI_Alltoallv_init(x, ones, places, MPI_DOUBLE, y, ones, places, MPI_DOUBLE, LAST));
    PERSISTS(alltoallw, whole,
             MPI_Alltoallw_init(x, ones, byte_places, types, y, ones, byte_places, types, LAST));
    MPI_Cart_create(comm, 1, &ranks, &periodic, 0, &grid), did("cart_create", 0);
    PERSISTS(neighbor_allgather, 16,
             MPI_Neighbor_allgather_init(x, 1, MPI_DOUBLE, y, 1, MPI_DOUBLE, ON_GRID));
    PERSISTS(neighbor_allgatherv, 16,
             MPI_Neighbor_allgatherv_init(x, 1, MPI_DOUBLE, y, ones, places, MPI_DOUBLE, ON_GRID));
    PERSISTS(neighbor_alltoall, 16,
             MPI_Neighbor_alltoall_init(x, 1, MPI_DOUBLE, y, 1, MPI_DOUBLE, ON_GRID));
    PERSISTS(neighbor_alltoallv, 16,
             MPI_Neighbor_alltoallv_init(x, ones, places, MPI_DOUBLE, y, ones, places, MPI_DOUBLE,
                                         ON_GRID));
    PERSISTS(neighbor_alltoallw, 16,
             MPI_Neighbor_alltoallw_init(x, ones, far_places, types, y, ones, far_places, types,
                                         ON_GRID));
    MPI_Comm_free(&grid), did("comm_free", 0);
}

static void partitioned(void)
{
    MPI_Request request;
    if (rank == 0) {
        MPI_Psend_init(x, 2, 3, MPI_DOUBLE, 1, 1, comm, MPI_INFO_NULL, &request);
        did("psend_init", 0);
    } else if (rank == 1) {
        MPI_Precv_init(y, 2, 3, MPI_DOUBLE, 0, 1, comm, MPI_INFO_NULL, &request);
        did("precv_init", 0);
    }
    if (rank > 1)
        return;
    for (int round = 0; round < 3; round++) {
        int both[2] = {1, 0}, arrived;
        MPI_Start(&request), did("start", 48);
        if (rank == 1)
            MPI_Parrived(request, 0, &arrived), did("parrived", 0);
        else if (round == 1)
            MPI_Pready_range(0, 1, request), did("pready_range", 0);
        else if (round == 2)
            MPI_Pready_list(2, both, request), did("pready_list", 0);
        else
            for (int i = 0; i < 2; i++)
                MPI_Pready(i, request), did("pready", 0);
        MPI_Wait(&request, MPI_STATUS_IGNORE), did("wait", 0);
    }
    MPI_Request_free(&request), did("request_free", 0);
}

static void messages(void)
{
    MPI_Request request;
    MPI_Isendrecv(x, 2, MPI_DOUBLE, (rank + 1) % ranks, 2, y, 2, MPI_DOUBLE, MPI_ANY_SOURCE, 2, comm,
                  &request);
    did("isendrecv", 16);
    MPI_Wait(&request, MPI_STATUS_IGNORE), did("wait", 0);
    MPI_Isendrecv_replace(y, 2, MPI_DOUBLE, (rank + 1) % ranks, 2, MPI_ANY_SOURCE, 2, comm, &request);
    did("isendrecv_replace", 16);
    MPI_Wait(&request, MPI_STATUS_IGNORE), did("wait", 0);
}

static void communicators(void)
{
    MPI_Comm made;
    MPI_Request request;
    MPI_Comm_idup_with_info(comm, MPI_INFO_NULL, &made, &request), did("comm_idup_with_info", 0);
    MPI_Wait(&request, MPI_STATUS_IGNORE), did("wait", 0);
    MPI_Comm_free(&made), did("comm_free", 0);
    if (rank < 2) {
        MPI_Group all, mine, theirs;
        int other = 1 - rank;
        MPI_Comm_group(comm, &all), did("comm_group", 0);
        MPI_Group_incl(all, 1, &rank, &mine), did("group_incl", 0);
        MPI_Group_incl(all, 1, &other, &theirs), did("group_incl", 0);
        MPI_Intercomm_create_from_groups(mine, 0, theirs, 0, "between", MPI_INFO_NULL,
                                         MPI_ERRORS_ARE_FATAL, &made);
        did("intercomm_create_from_groups", 0);
        MPI_Comm_free(&made), did("comm_free", 0);
        MPI_Group_free(&all), MPI_Group_free(&mine), MPI_Group_free(&theirs);
        for (int i = 0; i < 3; i++)
            did("group_free", 0);
    }
}

static void neighbors(void)
{
    MPI_Comm grid;
    MPI_Request request;
    int two[2] = {2, 2}, places[2] = {0, 2}, periodic = 1;
    MPI_Cart_create(comm, 1, &ranks, &periodic, 0, &grid), did("cart_create", 0);
    MPI_Neighbor_alltoallv(x, two, places, MPI_DOUBLE, y, two, places, MPI_DOUBLE, grid);
    did("neighbor_alltoallv", 32);
    MPI_Ineighbor_allgather(x, 2, MPI_DOUBLE, y, 2, MPI_DOUBLE, grid, &request);
    did("ineighbor_allgather", 32);
    MPI_Wait(&request, MPI_STATUS_IGNORE), did("wait", 0);
    MPI_Comm_free(&grid), did("comm_free", 0);
}

static void window(void)
{
    MPI_Win made;
    MPI_Win_create(y, sizeof y, 1, MPI_INFO_NULL, comm, &made), did("win_create", 0);
    MPI_Win_lock_all(0, made), did("win_lock_all", 0);
#ifndef I_MPI_VERSION /* Intel's ends with a signal as it waits for this */
    MPI_Request request;
    MPI_Rput(x, 2, MPI_DOUBLE, (rank + 1) % ranks, 0, 2, MPI_DOUBLE, made, &request);
    did("rput", 16);
    MPI_Wait(&request, MPI_STATUS_IGNORE), did("wait", 0);
#endif
    MPI_Win_unlock_all(made), did("win_unlock_all", 0);
    MPI_Win_free(&made), did("win_free", 0);
}

static void file(void)
{
    MPI_File made;
    MPI_File_open(comm, "shared-data", MPI_MODE_CREATE | MPI_MODE_RDWR, MPI_INFO_NULL, &made);
    did("file_open", 0);
    MPI_File_write_at_all(made, 80 * rank, x, 10, MPI_DOUBLE, MPI_STATUS_IGNORE);
    did("file_write_at_all", 80);
    MPI_File_read_at(made, 80 * rank, y, 10, MPI_DOUBLE, MPI_STATUS_IGNORE), did("file_read_at", 80);
    MPI_File_close(&made), did("file_close", 0);
}

#if MPI_VERSION > 4 || (MPI_VERSION == 4 && MPI_SUBVERSION >= 1)
#define HAS_MPI_4_1
static void statuses_and_buffers(void)
{
    static char room[4096];
    MPI_Request requests[2], request;
    MPI_Status statuses[2];
    void *given;
    int flag, index, done, indices[2], bytes;
    for (int i = 0; i < 2; i++)
        MPI_Ibarrier(comm, &requests[i]), did("ibarrier", 0);
    MPI_Request_get_status_all(2, requests, &flag, statuses), did("request_get_status_all", 0);
    MPI_Request_get_status_any(2, requests, &index, &flag, statuses);
    did("request_get_status_any", 0);
    MPI_Request_get_status_some(2, requests, &done, indices, statuses);
    did("request_get_status_some", 0);
    MPI_Waitall(2, requests, MPI_STATUSES_IGNORE), did("waitall", 0);
    MPI_Buffer_attach(room, sizeof room), did("buffer_attach", 0);
    MPI_Buffer_flush(), did("buffer_flush", 0);
    MPI_Buffer_iflush(&request), did("buffer_iflush", 0);
    MPI_Wait(&request, MPI_STATUS_IGNORE), did("wait", 0);
    MPI_Buffer_detach(&given, &bytes), did("buffer_detach", 0);
    MPI_Comm_attach_buffer(comm, room, sizeof room), did("comm_attach_buffer", 0);
    MPI_Comm_flush_buffer(comm), did("comm_flush_buffer", 0);
    MPI_Comm_iflush_buffer(comm, &request), did("comm_iflush_buffer", 0);
    MPI_Wait(&request, MPI_STATUS_IGNORE), did("wait", 0);
    MPI_Comm_detach_buffer(comm, &given, &bytes), did("comm_detach_buffer", 0);
}
#endif

#ifdef LARGE
static void large(void)
{
    MPI_Count counts[16], whole = 0;
    MPI_Aint places[16];
    MPI_Datatype pair;
    for (int i = 0; i < ranks; i++) {
        counts[i] = 1;
        places[i] = i;
        whole += 8;
    }
    MPI_Allreduce_c(x, y, 4, MPI_DOUBLE, MPI_SUM, comm), did("allreduce", 32);
    MPI_Alltoallv_c(x, counts, places, MPI_DOUBLE, y, counts, places, MPI_DOUBLE, comm);
    did("alltoallv", (long)whole);
    MPI_Type_contiguous_c(2, MPI_DOUBLE, &pair), did("type_contiguous", 0);
    MPI_Type_commit(&pair), did("type_commit", 0);
    MPI_Bcast_c(x, 3, pair, 0, comm), did("bcast", 48);
    MPI_Type_free(&pair), did("type_free", 0);
    if (rank == 0)
        MPI_Send_c(x, 2, MPI_DOUBLE, 1, 3, comm), did("send", 16);
    if (rank == 1)
        MPI_Recv_c(y, 2, MPI_DOUBLE, MPI_ANY_SOURCE, 3, comm, MPI_STATUS_IGNORE), did("recv", 16);
}
#endif

int main(int argc, char **argv)
{
    MPI_Session session;
    char name[32];
    (void)argv;
    if (argc > 1) {
        MPI_Group group;
        MPI_Session_init(MPI_INFO_NULL, MPI_ERRORS_ARE_FATAL, &session);
        MPI_Group_from_session_pset(session, "mpi://WORLD", &group), did("group_from_session_pset", 0);
        MPI_Comm_create_from_group(group, "known", MPI_INFO_NULL, MPI_ERRORS_ARE_FATAL, &comm);
        did("comm_create_from_group", 0);
        MPI_Group_free(&group), did("group_free", 0);
    } else {
        MPI_Init(NULL, NULL);
        MPI_Comm_dup(MPI_COMM_WORLD, &comm), did("comm_dup", 0);
    }
    MPI_Comm_rank(comm, &rank);
    MPI_Comm_size(comm, &ranks);
    persistent();
    messages();
    neighbors();
    if (argc == 1) { /* MPICH and Open MPI end with a signal here without MPI_COMM_WORLD */
        every_persistent();
        partitioned();
        communicators();
        window();
        file();
    }
#ifdef HAS_MPI_4_1
    if (argc == 1)
        statuses_and_buffers();
#endif
#ifdef LARGE
    large();
#endif
    MPI_Comm_free(&comm), did("comm_free", 0);
    snprintf(name, sizeof name, "counts-%d", rank);
    FILE *counts = fopen(name, "w");
    for (int i = 0; counted[i].name; i++)
        fprintf(counts, "%s %d %ld\n", counted[i].name, counted[i].calls, counted[i].bytes);
    fclose(counts);
    if (argc > 1)
        MPI_Session_finalize(&session);
    else
        MPI_Finalize();
    return 0;
}
