/* What a wrapper adds to a call. */
#ifndef HVPROF_COST_H
#define HVPROF_COST_H

#include <stdlib.h>

#include "../files.h"
#include "entries.h"

static uint64_t no_call(PARAMETERS)
{
    return (void)a, (void)b, (void)c, (void)d, (void)e, (void)f, (void)g, (void)h, (void)i,
           (void)j, (void)k, (void)l, (void)m, (void)n, (void)o, (void)p, MPI_SUCCESS;
}

/* Everything that a wrapper adds to a call, timed on a recording that is thrown away. */
static double own_cost_ns(const struct recorder *like)
{
    enum { BATCHES = 10, CALLS = 1000 };
    struct recorder *scratch = calloc(1, sizeof *scratch);
    struct recording *file = calloc(1, sizeof *file);
    struct operation operation = {.name = "calibration", .enter = enter_collective,
                                  .count = count_collective, .comm = 3, .payload = {1, 2},
                                  .function = {[C] = no_call}};
    uint64_t best_ns = UINT64_MAX;
    if (!scratch || !file)
        return 0;
    if (mpi.session_world) { /* no communicator is there yet */
        operation.enter = enter_plainly;
        operation.count = count_plainly;
    }
    scratch->file = file;
    scratch->cells_there = CELLS;
    scratch->current = calloc(1, sizeof *scratch->current);
    scratch->sites = calloc(1, sizeof *scratch->sites);
    begin_recording(scratch);
    if (like->trace) {
        file->trace_capacity = CALLS;
        scratch->trace = calloc(CALLS, sizeof *scratch->trace);
    }
    for (int batch = 0; batch < BATCHES; batch++) {
        uint64_t start_ns = clock_ns(CLOCK_MONOTONIC);
        for (int call = 0; call < CALLS; call++)
            call_recorded(scratch, &operation, C, CALLER,
                          (uint64_t[WORDS]){8, abi.byte, abi.world});
        uint64_t took_ns = clock_ns(CLOCK_MONOTONIC) - start_ns;
        best_ns = took_ns < best_ns ? took_ns : best_ns;
    }
    forget_comm(abi.world);
    forget_types();
    unlist_this_thread();
    for (int i = 0; i < COMMUNICATORS; i++)
        free(known[i].world_ranks);
    memset(known, 0, sizeof known);
    forget_slot();
    free(scratch->current);
    free(scratch->sites);
    free(scratch->trace);
    free(scratch);
    free(file);
    return (double)best_ns / CALLS;
}

#endif
