/* Times rounds of MPI_Allreduce, or of the recorder's steps. Arguments: rounds, then the number
   of floats of each message of a round, -1 for a call that moves none (MPI_Comm_compare); without
   messages a round is a step. Rank 0 prints the
   microseconds of a round, those of processor time, and the pages that the process grew by. */
#include <mpi.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static double processor_time(void)
{
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return now.tv_sec + now.tv_nsec * 1e-9;
}

static long resident_pages(void)
{
    long all = 0, resident = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (!file || fscanf(file, "%ld %ld", &all, &resident) != 2)
        resident = -1;
    fclose(file);
    return resident;
}

void hvprof_step(void) __attribute__((weak));
void hvprof_region_begin(const char *, int) __attribute__((weak));
void hvprof_region_end(void) __attribute__((weak));

static pthread_barrier_t communicated;
static void *communicate(void *unused)
{
    float own = 0, sum;
    MPI_Allreduce(&own, &sum, 1, MPI_FLOAT, MPI_SUM, MPI_COMM_SELF);
    pthread_barrier_wait(&communicated);
    pause();
    return unused;
}

static void start_communicating(void)
{
    pthread_t thread;
    pthread_barrier_init(&communicated, NULL, 2);
    pthread_create(&thread, NULL, communicate, NULL);
    pthread_barrier_wait(&communicated);
}

static void step(void)
{
    static const char *const names[] = {"load", "forward", "backward", "exposed"};
    static const int kinds[] = {2, 0, 0, 1};
    for (int i = 0; i < 4; i++) {
        hvprof_region_begin(names[i], kinds[i]);
        hvprof_region_end();
    }
    hvprof_step();
}

static void one_round(float *buffer, int messages, char **counts)
{
    if (!messages)
        step();
    for (int i = 0; i < messages; i++) {
        int count = atoi(counts[i]), result;
        if (count < 0)
            MPI_Comm_compare(MPI_COMM_SELF, MPI_COMM_SELF, &result);
        else
            MPI_Allreduce(MPI_IN_PLACE, buffer, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    }
}

int main(int argc, char **argv)
{
    long rounds = atol(argv[1]);
    int rank, steps = argc == 2, provided;
    float *buffer = calloc(16 << 20, sizeof *buffer);
    MPI_Init_thread(&argc, &argv, steps ? MPI_THREAD_MULTIPLE : MPI_THREAD_SINGLE, &provided);
    if (steps)
        start_communicating();
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    for (long i = 0; i <= rounds / 10; i++)
        one_round(buffer, argc - 2, argv + 2);
    long pages = resident_pages();
    double start = MPI_Wtime(), processor_start = processor_time();
    for (long i = 0; i < rounds; i++)
        one_round(buffer, argc - 2, argv + 2);
    if (rank == 0)
        printf("%.17g %.17g %ld\n", (MPI_Wtime() - start) / rounds * 1e6,
               (processor_time() - processor_start) / rounds * 1e6, resident_pages() - pages);
    MPI_Finalize();
    return 0;
}
