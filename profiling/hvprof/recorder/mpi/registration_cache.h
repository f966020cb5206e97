/* The registration cache of MVAPICH2, by the counters that it exposes through MPI_T. */
#ifndef HVPROF_REGISTRATION_CACHE_H
#define HVPROF_REGISTRATION_CACHE_H

#include <string.h>

#include "../format.h"
#include "library.h"

static bool read_counter(int index, uint64_t *value)
{
    void *session, *counter;
    int count = 0;
    int (*create)(void **) = find("PMPI_T_pvar_session_create");
    int (*allocate)(void *, int, void *, void **, int *) = find("PMPI_T_pvar_handle_alloc");
    int (*read_it)(void *, void *, void *) = find("PMPI_T_pvar_read");
    int (*end)(void **) = find("PMPI_T_pvar_session_free");
    if (!create || !allocate || !read_it || !end || create(&session) != MPI_SUCCESS)
        return false;
    uint64_t values[16] = {0};
    bool read = allocate(session, index, NULL, &counter, &count) == MPI_SUCCESS && count == 1 &&
                read_it(session, counter, values) == MPI_SUCCESS;
    end(&session);
    *value = values[0];
    return read;
}

static bool find_counter(const char *wanted, uint64_t *value)
{
    int count = 0;
    int (*get_count)(int *) = find("PMPI_T_pvar_get_num");
    int (*get_info)(int, char *, int *, int *, int *, handle *, void **, char *, int *, int *,
                    int *, int *, int *) = find("PMPI_T_pvar_get_info");
    if (get_count && get_info)
        get_count(&count);
    for (int index = 0; index < count; index++) {
        char name[128] = "";
        int room = sizeof name, verbosity, class, bind, readonly, continuous, atomic;
        handle type;
        void *values;
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
    int (*begin)(int, int *) = find("PMPI_T_init_thread");
    int (*end)(void) = find("PMPI_T_finalize");
    if (!begin || !end || begin(THREAD_SINGLE, &provided) != MPI_SUCCESS)
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
