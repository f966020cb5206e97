/* Threads that all call MPI at once, and mark regions and steps, while the recorder counts.
 *
 * For the thread sanitizer (toolchain/sanitize.py). The recorder is a part of the program here, so
 * that its own accesses are seen. Counts are checked by the recorder's tests. With an argument, the
 * recording begins before MPI does, as a job of torch.distributed lets it. */
#define _GNU_SOURCE
#include <dirent.h>
#include <mpi.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { CALLERS = 3, CALLS = 2000, COMMUNICATION = 1, KINDS = 4, BEAT_US = 300000 };

void hvprof_begin(int rank, int size, const char *library);
void hvprof_region_begin(const char *name, int kind);
void hvprof_region_end(void);
void hvprof_step(void);
void hvprof_cache(const char *name, int hit);
void hvprof_exchange(const char *operation, const char *algorithm, uint64_t message_bytes,
                     int size, double start_s, double wait_s, double transfer_s, double ready_s);

static MPI_Comm comms[CALLERS];

static double monotonic_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static int is_recorded(const char *folder)
{
    int found = 0;
    DIR *files = opendir(folder);
    for (struct dirent *one; files && (one = readdir(files));)
        found = found || strstr(one->d_name, ".hvprof");
    if (files) closedir(files);
    return found;
}

static void *calls(void *number)
{
    MPI_Comm own = comms[(intptr_t)number];
    for (int i = 0; i < CALLS; i++) {
        double one[64] = {1}, sum[64], now_s = monotonic_s();
        hvprof_region_begin("sums", i % KINDS);
        MPI_Allreduce(one, sum, 1 + i % 64, MPI_DOUBLE, MPI_SUM, own);
        hvprof_region_begin("within", COMMUNICATION);
        if (i % 50 == 0) MPI_Barrier(own);
        hvprof_region_end();
        hvprof_exchange("allreduce", "ring", 8, 2, now_s, 1e-6, 1e-6, now_s);
        hvprof_cache("handles", i % 2);
        hvprof_region_end();
        /* From thread to thread, as where a training moves to another one. */
        if (i % 10 == 0) hvprof_step();
    }
    return NULL;
}

int main(int argc, char **argv)
{
    char folder[] = "/tmp/recorder-threads-XXXXXX";
    if (!mkdtemp(folder)) return 1;
    setenv("HVPROF_DIR", folder, 1);
    setenv("HVPROF_TRACE", "500", 1);
    int provided;
    if (argc > 1) {
        hvprof_begin(0, 1, "none yet");
        usleep(BEAT_US); /* so that it gives signs of life by now */
    }
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
    if (provided != MPI_THREAD_MULTIPLE || !is_recorded(folder)) return 1;
    pthread_t threads[CALLERS];
    /* One after the other: MPI asks for that, not the recorder. */
    for (int t = 0; t < CALLERS; t++) MPI_Comm_dup(MPI_COMM_SELF, &comms[t]);
    for (int t = 0; t < CALLERS; t++)
        pthread_create(&threads[t], NULL, calls, (void *)(intptr_t)t);
    for (int t = 0; t < CALLERS; t++) pthread_join(threads[t], NULL);
    MPI_Finalize();
    char command[200];
    snprintf(command, sizeof command, "rm -r %s", folder);
    if (system(command)) return 1;
    puts("recorder: no race");
    return 0;
}
