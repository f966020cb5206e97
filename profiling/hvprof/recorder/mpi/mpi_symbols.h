/* The program's own MPI, found at run time: libmpi is not linked, because the preload
 * reaches every process of a job (shells, launchers, python), most of which have no MPI. */
#ifndef HVPROF_MPI_SYMBOLS_H
#define HVPROF_MPI_SYMBOLS_H

#include <dlfcn.h>
#include <link.h>
#include <mpi.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

/* Functions needed of it, found when it starts. */
#define MPI_FUNCTIONS(X)                                                                       \
    X(Comm_rank, comm_rank)                                                                    \
    X(Comm_size, comm_size)                                                                    \
    X(Comm_remote_size, comm_remote_size)                                                      \
    X(Comm_test_inter, comm_test_inter)                                                        \
    X(Comm_get_parent, comm_get_parent)                                                        \
    X(Comm_group, comm_group)                                                                  \
    X(Comm_remote_group, comm_remote_group)                                                    \
    X(Comm_dup, comm_dup)                                                                      \
    X(Comm_free, comm_free)                                                                    \
    X(Group_size, group_size)                                                                  \
    X(Group_translate_ranks, group_translate_ranks)                                            \
    X(Group_free, group_free)                                                                  \
    X(Type_size, type_size)                                                                    \
    X(Type_get_name, type_get_name)                                                            \
    X(Allgather, allgather)                                                                    \
    X(Send, send)                                                                              \
    X(Recv, recv)                                                                              \
    X(Get_library_version, get_library_version)

enum { COMMON_TYPES = 10 };

static struct {
#define DECLARE(NAME, name) __typeof__(&PMPI_##NAME) name;
    MPI_FUNCTIONS(DECLARE)
#undef DECLARE
    MPI_Comm world, self, no_comm;
    MPI_Datatype byte, no_type;
    struct {
        MPI_Datatype type;
        uint64_t bytes;
    } common[COMMON_TYPES];
} mpi;

/* Open MPI's predefined handles are addresses within libmpi; others' are numbers. */
#ifdef OPEN_MPI
#define PREDEFINED(symbol, constant) find(symbol)
#else
#define PREDEFINED(symbol, constant) constant
#endif

/* Python loads its extension modules, and libmpi with them, into scopes of their own,
 * which dlsym(RTLD_DEFAULT) does not see: one that has an MPI is looked for. */
static void *mpi_scope(void)
{
    struct link_map *library = NULL;
    dlinfo(dlopen(NULL, RTLD_LAZY), RTLD_DI_LINKMAP, &library);
    for (; library; library = library->l_next) {
        void *scope = dlopen(library->l_name, RTLD_LAZY | RTLD_NOLOAD);
        if (scope && dlsym(scope, "PMPI_Init"))
            return scope;
        if (scope)
            dlclose(scope);
    }
    return NULL;
}

static void *find(const char *symbol)
{
    static _Atomic(void *) scope;
    void *found = dlsym(RTLD_DEFAULT, symbol);
    if (!found && !scope)
        scope = mpi_scope();
    if (!found && scope)
        found = dlsym(scope, symbol);
    if (!found) {
        fprintf(stderr, "hvprof: error: the program's MPI has no %s: libhvprof.so was built "
                        "for another MPI, build it with the one in use\n", symbol);
        abort();
    }
    return found;
}

static void find_common_types(void)
{
    const MPI_Datatype types[COMMON_TYPES] = {
        PREDEFINED("ompi_mpi_byte", MPI_BYTE),         PREDEFINED("ompi_mpi_char", MPI_CHAR),
        PREDEFINED("ompi_mpi_int", MPI_INT),           PREDEFINED("ompi_mpi_long", MPI_LONG),
        PREDEFINED("ompi_mpi_float", MPI_FLOAT),       PREDEFINED("ompi_mpi_double", MPI_DOUBLE),
        PREDEFINED("ompi_mpi_int32_t", MPI_INT32_T),   PREDEFINED("ompi_mpi_int64_t", MPI_INT64_T),
        PREDEFINED("ompi_mpi_uint8_t", MPI_UINT8_T),
        PREDEFINED("ompi_mpi_uint64_t", MPI_UINT64_T)};
    for (int i = 0; i < COMMON_TYPES; i++) {
        int bytes = 0;
        mpi.type_size(types[i], &bytes);
        mpi.common[i].type = types[i];
        mpi.common[i].bytes = (uint64_t)bytes;
    }
}

static void find_mpi(void)
{
#define FIND(NAME, name) mpi.name = (__typeof__(mpi.name))find("PMPI_" #NAME);
    MPI_FUNCTIONS(FIND)
#undef FIND
    mpi.world = PREDEFINED("ompi_mpi_comm_world", MPI_COMM_WORLD);
    mpi.self = PREDEFINED("ompi_mpi_comm_self", MPI_COMM_SELF);
    mpi.no_comm = PREDEFINED("ompi_mpi_comm_null", MPI_COMM_NULL);
    mpi.byte = PREDEFINED("ompi_mpi_byte", MPI_BYTE);
    mpi.no_type = PREDEFINED("ompi_mpi_datatype_null", MPI_DATATYPE_NULL);
    find_common_types();
}

static int ranks_of(MPI_Comm comm)
{
    int inter = 0, ranks = 0;
    mpi.comm_test_inter(comm, &inter);
    (inter ? mpi.comm_remote_size : mpi.comm_size)(comm, &ranks);
    return ranks;
}

static uint64_t bytes_of(int64_t count, MPI_Datatype type)
{
    int bytes = 0;
    if (count > 0 && type != mpi.no_type)
        mpi.type_size(type, &bytes);
    return bytes > 0 ? (uint64_t)count * (uint64_t)bytes : 0;
}

#endif
