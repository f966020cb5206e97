/* Handles and special addresses of Fortran. A Fortran handle is an int, and all arguments are
 * passed by reference; `use mpi_f08` adds descriptors of buffers on some libraries. */
#ifndef HVPROF_FORTRAN_H
#define HVPROF_FORTRAN_H

#include "library.h"

enum thing { COMM, DATATYPE, REQUEST, MESSAGE, SESSION, THINGS };

static struct {
    handle (*converted[THINGS])(int);
    /* Of common blocks, under the names that compilers give; NULL where there is none. */
    const void *in_place[5], *ignored_status[5];
    /* Variables that hold such addresses, once Fortran has called MPI. */
    const void *const *in_place_at, *const *ignored_status_at;
} fortran;

static void find_fortran(void)
{
    static const char *const converters[] = {"PMPI_Comm_f2c", "PMPI_Type_f2c", "PMPI_Request_f2c",
                                             "PMPI_Message_f2c", "PMPI_Session_f2c"};
    static const char *const in_place[] = {"mpi_fortran_in_place_", "mpi_fortran_in_place__",
                                           "mpi_fortran_in_place", "MPI_FORTRAN_IN_PLACE",
                                           "MPIR_F08_MPI_IN_PLACE"};
    static const char *const ignored[] = {"mpi_fortran_status_ignore_", "mpi_fortran_status_ignore__",
                                          "mpi_fortran_status_ignore", "MPI_FORTRAN_STATUS_IGNORE",
                                          "MPIR_F08_MPI_STATUS_IGNORE_OBJ"};
    for (int i = 0; i < THINGS; i++)
        fortran.converted[i] = abi.handles_are_ints ? NULL : (handle(*)(int))find(converters[i]);
    for (int i = 0; i < 5; i++) {
        fortran.in_place[i] = find(in_place[i]);
        fortran.ignored_status[i] = find(ignored[i]);
    }
    fortran.in_place_at = find("MPIR_F_MPI_IN_PLACE");
    fortran.ignored_status_at = find("MPI_F_STATUS_IGNORE");
}

static handle from_fortran(enum thing thing, int number)
{
    return fortran.converted[thing] ? fortran.converted[thing](number)
                                    : (handle)(int64_t)number;
}

static bool is_one_of(const void *address, const void *const *known, const void *const *variable)
{
    for (int i = 0; i < 5; i++)
        if (address == known[i])
            return true;
    return variable && address == *variable;
}

#endif
