/* Times a peer's allreduce. mpi.c and oneccl.cpp include it, and define `prepare` and `allreduce`.
 *
 * Arguments: the file that rank 0 writes, the least and the most bytes of a message, and the
 * seconds for each size. A line is a format, the bytes of a message, and the microseconds of a
 * call: the median of its samples, by the slowest rank. A sum is verified before it is timed.
 * worker.py does the same with hvd_ext. */
#ifndef HVD_EXT_TIMED_H
#define HVD_EXT_TIMED_H

#include <mpi.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

enum format { FLOAT32, BFLOAT16, FLOAT16, FORMATS };
static const char *const NAMES[] = {"float32", "bfloat16", "float16"};
static const size_t ITEM_BYTES[] = {4, 2, 2};

/* As in worker.py. */
#define SAMPLE_S 0.002
enum { MOST_CALLS = 400, LEAST_SAMPLES = 3, MOST_SAMPLES = 25, VALUES = 5, HUGE_PAGE = 2 << 20 };

/* Called once, when MPI is up. */
static void prepare(int rank, int size);
/* Sums a buffer in place; nonzero: the peer does not have this format. */
static int allreduce(void *buffer, size_t count, enum format format);

static double now_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static double max_of_ranks(double value)
{
    double most = 0;
    MPI_Allreduce(&value, &most, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    return most;
}

/* The bits of a small whole number, exact in every format. */
static uint32_t bits_of(int value, enum format format)
{
    float number = (float)value;
    uint32_t bits;
    memcpy(&bits, &number, sizeof bits);
    if (format == FLOAT32)
        return bits;
    if (format == BFLOAT16)
        return bits >> 16;
    return value ? (bits >> 13) - ((127 - 15) << 10) : 0;
}

static int holds(const void *buffer, size_t at, enum format format, uint32_t bits)
{
    return ITEM_BYTES[format] == 4 ? ((const uint32_t *)buffer)[at] == bits
                                   : ((const uint16_t *)buffer)[at] == bits;
}

static void put(void *buffer, size_t at, enum format format, uint32_t bits)
{
    if (ITEM_BYTES[format] == 4)
        ((uint32_t *)buffer)[at] = bits;
    else
        ((uint16_t *)buffer)[at] = (uint16_t)bits;
}

/* 1: the sum is right; 0: the peer does not have the format. A wrong sum ends the job. */
static int verified(void *buffer, size_t count, enum format format, int rank, int size)
{
    uint32_t own[VALUES], sums[VALUES];
    int added = 0, wrong = 0;
    for (int r = 0; r < size; r++)
        added += r % 3;
    for (int value = 0; value < VALUES; value++) {
        own[value] = bits_of(value + rank % 3, format);
        sums[value] = bits_of(value * size + added, format);
    }
    for (size_t i = 0; i < count; i++)
        put(buffer, i, format, own[i % VALUES]);
    if (max_of_ranks(allreduce(buffer, count, format) != 0) > 0)
        return 0;
    for (size_t i = 0; i < count; i++)
        wrong |= !holds(buffer, i, format, sums[i % VALUES]);
    if (max_of_ranks(wrong) > 0) {
        if (rank == 0)
            fprintf(stderr, "a wrong sum of %zu %s\n", count, NAMES[format]);
        MPI_Abort(MPI_COMM_WORLD, 3);
    }
    memset(buffer, 0, count * ITEM_BYTES[format]);
    return 1;
}

static double sample_s(void *buffer, size_t count, enum format format, int calls)
{
    MPI_Barrier(MPI_COMM_WORLD);
    double start_s = now_s();
    for (int i = 0; i < calls; i++)
        allreduce(buffer, count, format);
    return max_of_ranks((now_s() - start_s) / calls);
}

static int ascending(const void *a, const void *b)
{
    double left = *(const double *)a, right = *(const double *)b;
    return (left > right) - (left < right);
}

static double median_s(void *buffer, size_t count, enum format format, double size_s)
{
    double samples[MOST_SAMPLES];
    sample_s(buffer, count, format, 1);
    double once_s = sample_s(buffer, count, format, 2);
    int calls = 1 + (int)(SAMPLE_S / once_s);
    calls = calls < MOST_CALLS ? calls : MOST_CALLS;
    int rounds = (int)(size_s / (once_s * calls));
    rounds = rounds < LEAST_SAMPLES ? LEAST_SAMPLES : rounds < MOST_SAMPLES ? rounds : MOST_SAMPLES;
    for (int i = 0; i < rounds; i++)
        samples[i] = sample_s(buffer, count, format, calls);
    qsort(samples, (size_t)rounds, sizeof *samples, ascending);
    return (samples[(rounds - 1) / 2] + samples[rounds / 2]) / 2;
}

/* Each rank has a core; so do hvd_ext's. */
static void pin(int rank)
{
    cpu_set_t allowed, own;
    CPU_ZERO(&own);
    sched_getaffinity(0, sizeof allowed, &allowed);
    int skip = rank % CPU_COUNT(&allowed);
    for (int core = 0; core < CPU_SETSIZE; core++)
        if (CPU_ISSET(core, &allowed) && skip-- == 0)
            CPU_SET(core, &own);
    sched_setaffinity(0, sizeof own, &own);
}

int main(int argc, char **argv)
{
    int rank, size;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    pin(rank);
    prepare(rank, size);
    size_t least = strtoull(argv[2], NULL, 10), most = strtoull(argv[3], NULL, 10);
    double size_s = atof(argv[4]);
    FILE *output = rank == 0 ? fopen(argv[1], "w") : NULL;
    /* Huge pages where they are to be had, as numpy's arrays of this size. */
    size_t held = (most + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
    void *buffer = aligned_alloc(HUGE_PAGE, held);
    madvise(buffer, held, MADV_HUGEPAGE);
    for (int format = 0; format < FORMATS; format++)
        for (size_t bytes = least; bytes <= most; bytes *= 2) {
            size_t count = bytes / ITEM_BYTES[format];
            if (!verified(buffer, count, (enum format)format, rank, size))
                break;
            double time_s = median_s(buffer, count, (enum format)format, size_s);
            if (output)
                fprintf(output, "%s %zu %.9g\n", NAMES[format], bytes, 1e6 * time_s);
        }
    if (output)
        fclose(output);
    MPI_Finalize();
    return 0;
}

#endif
