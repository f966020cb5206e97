/* Threads that all call MPI at once, and mark regions and steps, while the recorder counts.
 *
 * For the thread sanitizer (toolchain/sanitize.py). The recorder is a part of the program here, so
 * that its own accesses are seen. Counts are checked by the recorder's tests. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdlib.h>

#include "pmpi.c"

enum { CALLERS = 3, CALLS = 2000 };

static void *calls(void *number)
{
    (void)number;
    MPI_Comm own;
    if (MPI_Comm_dup(MPI_COMM_SELF, &own) != MPI_SUCCESS) exit(1);
    for (int i = 0; i < CALLS; i++) {
        double one[64] = {1}, sum[64];
        MPI_Allreduce(one, sum, 1 + i % 64, MPI_DOUBLE, MPI_SUM, own);
        if (i % 50 == 0) MPI_Barrier(own);
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
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
    if (provided != MPI_THREAD_MULTIPLE || !recorder) return 1;
    pthread_t threads[CALLERS];
    /* Communicators are made one after the other: MPI asks for that, not the recorder. */
    for (int t = 0; t < CALLERS; t++) pthread_create(&threads[t], NULL, calls, NULL);
    for (int t = 0; t < CALLERS; t++) pthread_join(threads[t], NULL);
    MPI_Finalize();
    char command[200];
    snprintf(command, sizeof command, "rm -r %s", folder);
    if (system(command)) return 1;
    puts("recorder: no race");
    return 0;
}
