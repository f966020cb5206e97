/* Holds what the recorder knows of an MPI library's interface against the library's header; prints
 * each fact that differs, and ends with their number. */
#define _GNU_SOURCE
#define MPI_Comm recorders_comm
#define MPI_Datatype recorders_datatype
#define MPI_Group recorders_group
#define MPI_Message recorders_message
#define MPI_Request recorders_request
#define MPI_SUCCESS recorders_success
#include "../../../profiling/hvprof/recorder/mpi/abi.h"
/* mpi.h has macros of these names. */
#ifdef OPEN_MPI_ABI
static const struct abi *const expected = &OPEN_MPI;
#elif defined STANDARD_ABI
static const struct abi *const expected = &STANDARD;
#else
static const struct abi *const expected = &MPICH;
#endif
#undef MPI_Comm
#undef MPI_Datatype
#undef MPI_Group
#undef MPI_Message
#undef MPI_Request
#undef MPI_SUCCESS
#include <dlfcn.h>
#include <mpi.h>
#include <stdio.h>

static int different;

#define SAME(FACT, HEADERS)                                                                    \
    if ((uint64_t)(FACT) != (uint64_t)(uintptr_t)(HEADERS)) {                                  \
        printf("%s is %llx, not %llx\n", #HEADERS, (unsigned long long)(uintptr_t)(HEADERS),   \
               (unsigned long long)(FACT));                                                    \
        different++;                                                                           \
    }

int main(void)
{
    MPI_Status status;
    int source = (int)((char *)&status.MPI_SOURCE - (char *)&status) / (int)sizeof(int);
    const MPI_Datatype common[COMMON_TYPES] = {
        MPI_BYTE,   MPI_CHAR,    MPI_INT,     MPI_LONG,    MPI_FLOAT,
        MPI_DOUBLE, MPI_INT32_T, MPI_INT64_T, MPI_UINT8_T, MPI_UINT64_T};
    abi = *expected;
#ifdef OPEN_MPI_ABI
    abi.world = (handle)dlsym(RTLD_DEFAULT, OMPI("comm_world"));
    abi.self = (handle)dlsym(RTLD_DEFAULT, OMPI("comm_self"));
    abi.no_comm = (handle)dlsym(RTLD_DEFAULT, OMPI("comm_null"));
    abi.byte = (handle)dlsym(RTLD_DEFAULT, OMPI("byte"));
    abi.no_type = (handle)dlsym(RTLD_DEFAULT, OMPI("datatype_null"));
    for (int i = 0; i < COMMON_TYPES; i++)
        abi.common[i] = (handle)dlsym(RTLD_DEFAULT, COMMON_NAMES[i]);
#endif
    SAME(abi.handles_are_ints, sizeof(MPI_Comm) == sizeof(int));
    SAME(abi.source, source);
    SAME(abi.any_source, MPI_ANY_SOURCE);
    SAME(abi.graph, MPI_GRAPH);
    SAME(abi.cart, MPI_CART);
    SAME(abi.dist_graph, MPI_DIST_GRAPH);
    SAME(abi.in_place, MPI_IN_PLACE);
    SAME(abi.ignored_status, MPI_STATUS_IGNORE);
    SAME(abi.world, MPI_COMM_WORLD);
    SAME(abi.self, MPI_COMM_SELF);
    SAME(abi.no_comm, MPI_COMM_NULL);
    SAME(abi.byte, MPI_BYTE);
    SAME(abi.no_type, MPI_DATATYPE_NULL);
    for (int i = 0; i < COMMON_TYPES; i++)
        SAME(abi.common[i], common[i]);
    SAME(sizeof status <= STATUS_INTS * sizeof(int), 1);
    SAME(MPI_MAX_OBJECT_NAME <= NAME_ROOM, 1);
    SAME(MPI_MAX_LIBRARY_VERSION_STRING < VERSION_ROOM, 1);
    return different;
}
