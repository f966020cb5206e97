/* Whether all ranks have a trace: one decision, which they take through the recording's folder.
 *
 * A rank without the recorder (a static program, a host without the library) never calls the
 * collectives in which clocks are compared, and the others would wait for it in MPI_Init without
 * an end. So ranks write their files first, and rank 0 looks for those of all. The decision is a
 * symbolic link: the first rank that makes it has decided, on any file system that hosts share,
 * and its target says what. All other ranks read it, those that gave up at that moment too.
 */
#ifndef HVPROF_DECISION_H
#define HVPROF_DECISION_H

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "mpi/communicators.h"
#include "recorder.h"

#define DECISION "decision" /* as in recording/session.py */
/* Rank 0 waits this long for files, the others twice as long for rank 0. */
enum { FILES_WITHIN_MS = 10000, LONGEST_PAUSE_US = 100000 };

/* A file of this job: one that has ended is an earlier job's. */
static bool has_trace(int folder, int rank, int size)
{
    static struct recording head; /* of which a part is read */
    char name[32];
    snprintf(name, sizeof name, "rank-%05d.hvprof", rank);
    int file = openat(folder, name, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return false;
    size_t bytes = offsetof(struct recording, names);
    bool whole = pread(file, &head, bytes, 0) == (ssize_t)bytes;
    close(file);
    return whole && !memcmp(head.magic, "hvprof\r\n", sizeof head.magic) && head.size == size &&
           head.state == RUNNING && head.trace_capacity;
}

/* Keeps of the ranks in `waited` those that have no trace yet; returns how many are left. */
static int without_trace(int folder, int size, int *waited, int count)
{
    int left = 0;
    for (int i = 0; i < count; i++)
        if (!has_trace(folder, waited[i], size))
            waited[left++] = waited[i];
    return left;
}

/* Whether all ranks of a job of `size` have a trace; `traced`: whether this one has. Every rank
 * that calls it gets the same answer, at the latest after twice `within_ms`. */
static bool all_have_traces(const char *directory, int rank, int size, bool traced, int within_ms)
{
    char all[64], missing[96], reason[192], decided[192];
    double within_s = (rank ? 2 : 1) * within_ms / 1e3;
    uint64_t last_ns = clock_ns(CLOCK_MONOTONIC) + (uint64_t)(within_s * 1e9);
    int left = size, *waited = malloc((size_t)size * sizeof *waited);
    ssize_t length;
    snprintf(all, sizeof all, "all %d ranks have a trace", size);
    for (int i = 0; waited && i < size; i++)
        waited[i] = i;
    for (useconds_t pause_us = 500;; pause_us += pause_us < LONGEST_PAUSE_US ? pause_us : 0) {
        bool late = clock_ns(CLOCK_MONOTONIC) >= last_ns;
        const char *mine = NULL;
        /* Opened each time, whereupon a client of NFS asks its server for what is new. */
        int folder = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (!traced || !waited) {
            snprintf(reason, sizeof reason, "rank %d has no trace", rank);
            mine = reason;
        } else if (rank == 0 && !(left = without_trace(folder, size, waited, left))) {
            mine = all;
        } else if (late && rank == 0) {
            write_ranks(waited, left, missing, sizeof missing);
            snprintf(reason, sizeof reason, "no trace of rank%s %s after %g s",
                     left > 1 ? "s" : "", missing, within_s);
            mine = reason;
        } else if (late) {
            snprintf(reason, sizeof reason, "no decision of rank 0 after %g s", within_s);
            mine = reason;
        }
        if (mine && !symlinkat(mine, folder, DECISION) && mine != all)
            fprintf(stderr, "hvprof: clocks are not compared: %s; start all with the recorder\n",
                    mine);
        length = readlinkat(folder, DECISION, decided, sizeof decided - 1);
        close(folder);
        if (length >= 0 || late)
            break;
        usleep(pause_us);
    }
    free(waited);
    decided[length > 0 ? length : 0] = '\0';
    return !strcmp(decided, all);
}

#endif
