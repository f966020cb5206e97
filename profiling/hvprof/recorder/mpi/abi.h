/* What MPI's interface looks like to a compiled program, by family of libraries.
 *
 * The recorder is built without any mpi.h, and serves the programs of all families. A handle is an
 * int in MPICH's and a pointer elsewhere; here it is one word. tests/programs/hvprof/abi.c holds
 * these facts against the header of each library.
 */
#ifndef HVPROF_ABI_H
#define HVPROF_ABI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef uint64_t handle;
typedef handle MPI_Comm, MPI_Datatype, MPI_Group, MPI_Message, MPI_Request;

enum { MPI_SUCCESS = 0, THREAD_SINGLE = 0, STATUS_INTS = 16, COMMON_TYPES = 10 };
enum { NAME_ROOM = 256, VERSION_ROOM = 8192 + 1 }; /* for texts, in the families with the longest */

struct abi {
    bool handles_are_ints;
    int source; /* place of MPI_SOURCE among the ints of a status */
    int any_source;
    int graph, cart, dist_graph;
    uintptr_t in_place, ignored_status;
    handle world, self, no_comm, byte, no_type;
    handle common[COMMON_TYPES]; /* as in COMMON_NAMES */
};

/* Open MPI's predefined handles are the addresses of these objects. */
#define OMPI(name) "ompi_mpi_" name
static const char *const COMMON_NAMES[COMMON_TYPES] = {
    OMPI("byte"),    OMPI("char"),    OMPI("int"),     OMPI("long"),    OMPI("float"),
    OMPI("double"),  OMPI("int32_t"), OMPI("int64_t"), OMPI("uint8_t"), OMPI("uint64_t")};

static const struct abi OPEN_MPI = {
    .source = 0, .any_source = -1, .cart = 1, .graph = 2, .dist_graph = 3, .in_place = 1};

/* MPICH, Intel MPI, MVAPICH, Cray MPICH and others: the initiative of 2013. */
static const struct abi MPICH = {
    .handles_are_ints = true, .source = 2, .any_source = -2, .graph = 1, .cart = 2,
    .dist_graph = 3, .in_place = UINTPTR_MAX, .ignored_status = 1,
    .world = 0x44000000, .self = 0x44000001, .no_comm = 0x04000000, .byte = 0x4c00010d,
    .no_type = 0x0c000000,
    .common = {0x4c00010d, 0x4c000101, 0x4c000405, 0x4c000807, 0x4c00040a, 0x4c00080b, 0x4c000439,
               0x4c00083a, 0x4c00013b, 0x4c00083e}};

/* That of MPI 5.0, which libmpi_abi offers. */
static const struct abi STANDARD = {
    .source = 0, .any_source = -1, .cart = 211, .graph = 212, .dist_graph = 213, .in_place = 1,
    .world = 0x101, .self = 0x102, .no_comm = 0x100, .byte = 0x247, .no_type = 0x200,
    .common = {0x247, 0x243, 0x209, 0x20a, 0x210, 0x214, 0x250, 0x258, 0x241, 0x259}};

/* That of the program's library, from when it starts MPI. */
static struct abi abi;

/* A handle as it was passed: of an int, the rest of the word is undefined. The compilers of some
 * machines expect a sign there. */
static handle passed(uint64_t word)
{
    return abi.handles_are_ints ? (handle)(int64_t)(int32_t)word : word;
}

/* A handle in an array of the program's, or in a variable that MPI wrote. */
static handle handle_at(const void *array, size_t place)
{
    return abi.handles_are_ints ? (handle)(int64_t)((const int32_t *)array)[place]
                                : ((const uint64_t *)array)[place];
}

static int source_in(const void *status)
{
    return ((const int *)status)[abi.source];
}

#endif
