/* The program's own MPI, found at run time: libmpi is not linked, because the preload
 * reaches every process of a job (shells, launchers, python), most of which have no MPI. */
#ifndef HVPROF_LIBRARY_H
#define HVPROF_LIBRARY_H

#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "abi.h"
#include "functions.h"

static struct {
#define DECLARE(NAME, name, PARAMETERS) int(*name) PARAMETERS;
    MPI_FUNCTIONS(DECLARE)
#undef DECLARE
    uint64_t common_bytes[COMMON_TYPES];
    bool found; /* the program has started MPI, and its library is known */
    /* Where it was started by a session, all ranks, as MPI wrote the group: there is no world. */
    handle session_world;
} mpi;

#ifdef LINKED_RECORDER
#include "../linked/find.h"
#else
/* Python loads its extension modules, and libmpi with them, into scopes of their own,
 * which dlsym(RTLD_DEFAULT) does not see: a library that has the symbol is looked for. */
static void *find_in_scopes(const char *symbol)
{
    struct link_map *library = NULL;
    dlinfo(dlopen(NULL, RTLD_LAZY), RTLD_DI_LINKMAP, &library);
    for (; library; library = library->l_next) {
        void *scope = dlopen(library->l_name, RTLD_LAZY | RTLD_NOLOAD);
        void *found = scope ? dlsym(scope, symbol) : NULL;
        if (scope)
            dlclose(scope);
        if (found)
            return found;
    }
    return NULL;
}

/* NULL where the program has no such symbol. */
static void *find(const char *symbol)
{
    void *found = dlsym(RTLD_DEFAULT, symbol);
    return found ? found : find_in_scopes(symbol);
}
#endif

/* Which family the program's library is of; false where none is known. `version` is its text. */
static bool find_family(const char *version)
{
    Dl_info library = {0};
    dladdr(find("PMPI_Comm_rank"), &library);
    if (library.dli_fname && strstr(library.dli_fname, "mpi_abi"))
        abi = STANDARD;
    else if (find("ompi_mpi_comm_world"))
        abi = OPEN_MPI;
    else if (strstr(version, "MPICH") || strstr(version, "Intel(R) MPI") ||
             strstr(version, "MVAPICH") || strstr(version, "ParaStation"))
        abi = MPICH;
    else
        return false;
    return true;
}

static void find_predefined(void)
{
    if (!abi.world) {
        abi.world = (handle)find(OMPI("comm_world"));
        abi.self = (handle)find(OMPI("comm_self"));
        abi.no_comm = (handle)find(OMPI("comm_null"));
        abi.byte = (handle)find(OMPI("byte"));
        abi.no_type = (handle)find(OMPI("datatype_null"));
        for (int i = 0; i < COMMON_TYPES; i++)
            abi.common[i] = (handle)find(COMMON_NAMES[i]);
    }
    for (int i = 0; i < COMMON_TYPES; i++) {
        int bytes = 0;
        mpi.type_size(abi.common[i], &bytes);
        mpi.common_bytes[i] = (uint64_t)bytes;
    }
}

/* False where the program's library is not one that can be recorded; `why` says it then. */
static bool find_mpi(char version[VERSION_ROOM], char *why, size_t room)
{
    const char *missing = NULL;
    int length = 0;
#define FIND(NAME, name, PARAMETERS)                                                           \
    mpi.name = (int(*) PARAMETERS)find("PMPI_" #NAME);                                         \
    missing = mpi.name ? missing : "PMPI_" #NAME;
    MPI_FUNCTIONS(FIND)
#undef FIND
    if (mpi.get_library_version)
        mpi.get_library_version(version, &length);
    version[strcspn(version, "\n")] = '\0';
    if (missing)
        snprintf(why, room, "the program's MPI has no %s", missing);
    else if (!find_family(version))
        snprintf(why, room, "unknown MPI library %.80s", version);
    else
        mpi.found = true;
    if (mpi.found)
        find_predefined();
    return mpi.found;
}

static int ranks_of(MPI_Comm comm)
{
    int inter = 0, ranks = 0;
    mpi.comm_test_inter(comm, &inter);
    (inter ? mpi.comm_remote_size : mpi.comm_size)(comm, &ranks);
    return ranks;
}

/* Neighbors that this rank receives from, and that it sends to, in the communicator's topology. */
static void count_neighbors(MPI_Comm comm, int *sources, int *targets)
{
    int topology = 0, rank = 0, weighted;
    mpi.topo_test(comm, &topology);
    *sources = *targets = 0;
    if (topology == abi.dist_graph) {
        mpi.dist_graph_neighbors_count(comm, sources, targets, &weighted);
        return;
    }
    if (topology == abi.cart) {
        mpi.cartdim_get(comm, sources);
        *sources *= 2;
    } else if (topology == abi.graph) {
        mpi.comm_rank(comm, &rank);
        mpi.graph_neighbors_count(comm, rank, sources);
    }
    *targets = *sources;
}

static uint64_t bytes_of(int64_t count, MPI_Datatype type)
{
    int bytes = 0;
    if (count > 0 && type != abi.no_type)
        mpi.type_size(type, &bytes);
    return bytes > 0 ? (uint64_t)count * (uint64_t)bytes : 0;
}

#endif
