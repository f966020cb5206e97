/* The registration cache of MVAPICH2, by the counters that it exposes through MPI_T. */
#ifndef HVPROF_REGISTRATION_CACHE_H
#define HVPROF_REGISTRATION_CACHE_H

#include <string.h>

#include "../format.h"
#include "mpi_symbols.h"

static bool read_counter(int index, uint64_t *value)
{
    MPI_T_pvar_session session;
    MPI_T_pvar_handle handle;
    int count = 0;
    __typeof__(&PMPI_T_pvar_session_create) create = find("PMPI_T_pvar_session_create");
    __typeof__(&PMPI_T_pvar_handle_alloc) allocate = find("PMPI_T_pvar_handle_alloc");
    __typeof__(&PMPI_T_pvar_read) read_it = find("PMPI_T_pvar_read");
    __typeof__(&PMPI_T_pvar_session_free) end = find("PMPI_T_pvar_session_free");
    if (create(&session) != MPI_SUCCESS)
        return false;
    uint64_t values[16] = {0};
    bool read = allocate(session, index, NULL, &handle, &count) == MPI_SUCCESS && count == 1 &&
                read_it(session, handle, values) == MPI_SUCCESS;
    end(&session);
    *value = values[0];
    return read;
}

static bool find_counter(const char *wanted, uint64_t *value)
{
    int count = 0;
    __typeof__(&PMPI_T_pvar_get_num) get_count = find("PMPI_T_pvar_get_num");
    __typeof__(&PMPI_T_pvar_get_info) get_info = find("PMPI_T_pvar_get_info");
    get_count(&count);
    for (int index = 0; index < count; index++) {
        char name[128] = "";
        int room = sizeof name, verbosity, class, bind, readonly, continuous, atomic;
        MPI_Datatype type;
        MPI_T_enum values;
        if (get_info(index, name, &room, &verbosity, &class, &type, &values, NULL, NULL, &bind,
                     &readonly, &continuous, &atomic) == MPI_SUCCESS &&
            !strcmp(name, wanted))
            return read_counter(index, value);
    }
    return false;
}

/* Other libraries expose no such counters, and are not asked. */
static void read_registration_cache(struct recording *into)
{
    int provided;
    uint64_t hits, misses;
    if (!strstr(into->library, "MVAPICH"))
        return;
    __typeof__(&PMPI_T_init_thread) begin = find("PMPI_T_init_thread");
    __typeof__(&PMPI_T_finalize) end = find("PMPI_T_finalize");
    if (begin(MPI_THREAD_SINGLE, &provided) != MPI_SUCCESS)
        return;
    if (find_counter("mv2_reg_cache_hits", &hits) &&
        find_counter("mv2_reg_cache_misses", &misses)) {
        into->cache_hits = hits;
        into->cache_misses = misses;
        strcpy(into->cache_source, "MPI_T mv2_reg_cache");
    }
    end();
}

#endif
