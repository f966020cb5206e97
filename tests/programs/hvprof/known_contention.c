/* Two threads on one core: one computes, in steps, and the other communicates or sleeps.
 *
 * Prints of each step what the first thread was ready but not on the core (by its own clocks:
 * it never waits for anything else), how long the other one was on it, and how long the first
 * was kept off it in a region of kind communication. */
#define _GNU_SOURCE
#include <mpi.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { STEPS = 6, FLOATS = 1 << 18, COMMUNICATION = 1 };
void hvprof_step(void) __attribute__((weak));
void hvprof_region_begin(const char *, int) __attribute__((weak));
void hvprof_region_end(void) __attribute__((weak));

static _Atomic int wanted, ended, ready;
static clockid_t its_clock;

static double seconds(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static void *communicate(void *unused)
{
    float *buffer = calloc(FLOATS, sizeof *buffer), *sum = calloc(FLOATS, sizeof *sum);
    MPI_Allreduce(buffer, sum, FLOATS, MPI_FLOAT, MPI_SUM, MPI_COMM_SELF);
    pthread_getcpuclockid(pthread_self(), &its_clock);
    ready = 1;
    while (!ended) {
        if (wanted)
            MPI_Allreduce(buffer, sum, FLOATS, MPI_FLOAT, MPI_SUM, MPI_COMM_SELF);
        else
            nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    return unused;
}

static void compute(double cpu_s)
{
    for (double end = seconds(CLOCK_THREAD_CPUTIME_ID) + cpu_s;
         seconds(CLOCK_THREAD_CPUTIME_ID) < end;)
        ;
}

static double queued(void)
{
    return seconds(CLOCK_MONOTONIC) - seconds(CLOCK_THREAD_CPUTIME_ID);
}

int main(int argc, char **argv)
{
    int provided;
    pthread_t other;
    cpu_set_t all, one;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
    if (provided < MPI_THREAD_MULTIPLE || !hvprof_step)
        MPI_Abort(MPI_COMM_WORLD, 3);
    sched_getaffinity(0, sizeof all, &all);
    CPU_ZERO(&one);
    for (int core = 0; core < CPU_SETSIZE && !CPU_COUNT(&one); core++)
        if (CPU_ISSET(core, &all))
            CPU_SET(core, &one);
    sched_setaffinity(0, sizeof one, &one);
    pthread_create(&other, NULL, communicate, NULL);
    while (!ready)
        sched_yield();
    hvprof_step();
    for (int step = 0; step < STEPS; step++) {
        double before = queued(), its_before = seconds(its_clock);
        wanted = step % 2;
        hvprof_region_begin("forward", 0);
        compute(0.08);
        hvprof_region_end();
        double until = queued();
        hvprof_region_begin("exposed", COMMUNICATION);
        compute(0.02);
        hvprof_region_end();
        double blocked = queued() - until, computing = until - before;
        double its = seconds(its_clock) - its_before;
        wanted = 0;
        hvprof_step();
        printf("step %.9f %.9f %.9f\n", computing, its, blocked);
    }
    ended = 1;
    pthread_join(other, NULL);
    MPI_Finalize();
    return 0;
}
