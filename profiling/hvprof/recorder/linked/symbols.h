/* What the recorder asks of an MPI library, where it is linked with the program: each SYMBOL(). */
#define OPERATION(Name, low, ...)                                                             \
    SYMBOL(PMPI_##Name)                                                                        \
    SYMBOL(PMPI_##Name##_c)                                                                    \
    SYMBOL(pmpi_##low##_)                                                                     \
    SYMBOL(pmpi_##low##__)                                                                    \
    SYMBOL(pmpi_##low##_f08_)                                                                 \
    SYMBOL(pmpir_##low##_f08_)                                                                \
    SYMBOL(pmpi_##low##_f08ts_)                                                               \
    SYMBOL(pmpir_##low##_f08ts_)
#define RECENT(Name, low, ...) OPERATION(Name, low)
#include "../wrappers/operations.h"
#include "../wrappers/others.h"
OPERATION(Init, init)
OPERATION(Init_thread, init_thread)
OPERATION(Finalize, finalize)
OPERATION(Pcontrol, pcontrol)
OPERATION(Session_init, session_init)
OPERATION(Session_finalize, session_finalize)
#undef OPERATION
#undef RECENT
#include "../mpi/functions.h"
#define FUNCTION(Name, name, PARAMETERS) SYMBOL(PMPI_##Name)
MPI_FUNCTIONS(FUNCTION)
#undef FUNCTION
/* Where other parts ask for them by name. */
SYMBOL(PMPI_Comm_f2c)
SYMBOL(PMPI_Type_f2c)
SYMBOL(PMPI_Request_f2c)
SYMBOL(PMPI_Message_f2c)
SYMBOL(PMPI_Session_f2c)
SYMBOL(mpi_fortran_in_place_)
SYMBOL(mpi_fortran_status_ignore_)
SYMBOL(MPIR_F08_MPI_IN_PLACE)
SYMBOL(MPIR_F08_MPI_STATUS_IGNORE_OBJ)
SYMBOL(MPIR_F_MPI_IN_PLACE)
SYMBOL(MPI_F_STATUS_IGNORE)
SYMBOL(ompi_mpi_comm_world)
SYMBOL(ompi_mpi_comm_self)
SYMBOL(ompi_mpi_comm_null)
SYMBOL(ompi_mpi_datatype_null)
SYMBOL(ompi_mpi_byte)
SYMBOL(ompi_mpi_char)
SYMBOL(ompi_mpi_int)
SYMBOL(ompi_mpi_long)
SYMBOL(ompi_mpi_float)
SYMBOL(ompi_mpi_double)
SYMBOL(ompi_mpi_int32_t)
SYMBOL(ompi_mpi_int64_t)
SYMBOL(ompi_mpi_uint8_t)
SYMBOL(ompi_mpi_uint64_t)
