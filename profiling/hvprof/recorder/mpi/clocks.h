/* How far this rank's clock is from rank 0's, so that traces of several hosts can be laid
 * side by side. Only a job does this of which all ranks are traced (decision.h): when MPI starts
 * and when it ends, on a separate communicator; ranks on one clock need it once, and those on
 * rank 0's never.
 */
#ifndef HVPROF_CLOCKS_H
#define HVPROF_CLOCKS_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "library.h"
#include "../recorder.h"

enum { ROUNDS = 32, CLOCK_TAG = 1 };

static handle clock_comm; /* as MPI wrote it */
static bool clocks_are_compared;

/* Names the clock: it is one for all processes since a machine was started. */
static void name_clock(char *name, size_t room)
{
    char boot[40] = "", space[40] = "";
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "re");
    if (file) {
        if (fscanf(file, "%39s", boot) != 1)
            boot[0] = '\0';
        fclose(file);
    }
    ssize_t length = readlink("/proc/self/ns/time", space, sizeof space - 1);
    space[length > 0 ? length : 0] = '\0';
    snprintf(name, room, "%.36s %.26s", boot, space);
}

/* As in NTP, and of all rounds the quickest: the answer was read within half of it. */
static struct offset ask_rank_0(void)
{
    struct offset best = {.error_ns = UINT64_MAX};
    MPI_Comm comm = handle_at(&clock_comm, 0);
    void *no_status = (void *)abi.ignored_status;
    for (int round = 0; round < ROUNDS; round++) {
        uint64_t theirs, sent_ns = clock_ns(CLOCK_MONOTONIC);
        mpi.send(&theirs, 0, abi.byte, 0, CLOCK_TAG, comm);
        mpi.recv(&theirs, sizeof theirs, abi.byte, 0, CLOCK_TAG, comm, no_status);
        uint64_t took_ns = clock_ns(CLOCK_MONOTONIC) - sent_ns;
        if (took_ns / 2 < best.error_ns)
            best = (struct offset){sent_ns, (int64_t)(theirs - sent_ns - took_ns / 2), took_ns / 2};
    }
    return best;
}

static void answer(int rank)
{
    MPI_Comm comm = handle_at(&clock_comm, 0);
    void *no_status = (void *)abi.ignored_status;
    for (int round = 0; round < ROUNDS; round++) {
        uint64_t nothing;
        mpi.recv(&nothing, 0, abi.byte, rank, CLOCK_TAG, comm, no_status);
        uint64_t now_ns = clock_ns(CLOCK_MONOTONIC);
        mpi.send(&now_ns, sizeof now_ns, abi.byte, rank, CLOCK_TAG, comm);
    }
}

/* Collective over all ranks. What comes back is 0 but on the first rank of each clock. */
static struct offset compare_clocks(const char *name)
{
    int rank, size;
    MPI_Comm comm = handle_at(&clock_comm, 0);
    char mine[64] = "";
    struct offset offset = {0};
    snprintf(mine, sizeof mine, "%s", name);
    mpi.comm_rank(comm, &rank);
    mpi.comm_size(comm, &size);
    char(*names)[sizeof mine] = calloc((size_t)size, sizeof *names);
    if (!names)
        abort(); /* the other ranks would wait forever */
    mpi.allgather(mine, sizeof mine, abi.byte, names, sizeof mine, abi.byte, comm);
    for (int first = 1; first < size; first++) {
        bool seen = false;
        for (int before = 0; before < first && !seen; before++)
            seen = !memcmp(names[before], names[first], sizeof mine);
        if (!seen && rank == 0)
            answer(first);
        else if (!seen && rank == first)
            offset = ask_rank_0();
    }
    free(names);
    return offset;
}

#endif
