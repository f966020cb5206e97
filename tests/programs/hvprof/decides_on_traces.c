/* Processes that race to decide whether all ranks have a trace, around the moment at which they give
 * up. Prints how many rounds ended with yes, with no, and with processes that disagree. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "../../../profiling/hvprof/recorder/decision.h"
#include "../../../profiling/hvprof/recorder/files.h"

enum { RANKS = 4, WITHIN_MS = 8 };

/* What a rank decides that begins after `late_us`. */
static int takes_part(const char *folder, int rank, unsigned late_us)
{
    usleep(late_us);
    struct recorder *made = create_recorder(folder, rank, RANKS, 1);
    return all_have_traces(folder, rank, RANKS, made && made->trace, WITHIN_MS);
}

int main(int argc, char **argv)
{
    int rounds = argc == 3 ? atoi(argv[2]) : 0, yes = 0, no = 0, mixed = 0;
    srand(1);
    for (int round = 0; round < rounds; round++) {
        char folder[4096];
        int agreed = 0;
        snprintf(folder, sizeof folder, "%s/%d", argv[1], round);
        if (mkdir(folder, 0700))
            return 1;
        for (int rank = 0; rank < RANKS; rank++) {
            /* One rank comes late: rank 0 is waited for twice as long. */
            unsigned limit_us = 1000 * WITHIN_MS * (round % RANKS ? 1 : 2);
            unsigned late_us = rank == round % RANKS ? limit_us / 2 + rand() % limit_us : 0;
            if (!fork())
                _exit(takes_part(folder, rank, late_us));
        }
        for (int rank = 0, status; rank < RANKS; rank++) {
            wait(&status);
            agreed += WIFEXITED(status) ? WEXITSTATUS(status) : RANKS;
        }
        yes += agreed == RANKS;
        no += agreed == 0;
        mixed += agreed != 0 && agreed != RANKS;
    }
    printf("%d %d %d\n", yes, no, mixed);
    return 0;
}
