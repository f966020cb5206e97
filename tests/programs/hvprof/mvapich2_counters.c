/* What MVAPICH2 exposes of its registration cache, for an MPI that is another one. */
#include <mpi.h>
#include <string.h>

static const char *const NAMES[] = {"mv2_vbuf_allocated", "mv2_reg_cache_misses",
                                    "mv2_reg_cache_hits"};
static const unsigned long long VALUES[] = {1, 250, 750};

int PMPI_Get_library_version(char *version, int *length)
{
    strcpy(version, "MVAPICH2 Version      :\t2.3.7");
    *length = (int)strlen(version);
    return MPI_SUCCESS;
}

int PMPI_T_init_thread(int required, int *provided)
{
    *provided = required;
    return MPI_SUCCESS;
}

int PMPI_T_finalize(void)
{
    return MPI_SUCCESS;
}

int PMPI_T_pvar_get_num(int *count)
{
    *count = 3;
    return MPI_SUCCESS;
}

int PMPI_T_pvar_get_info(int index, char *name, int *name_length, int *verbosity, int *class,
                         MPI_Datatype *type, MPI_T_enum *values, char *text, int *text_length,
                         int *bind, int *readonly, int *continuous, int *atomic)
{
    strcpy(name, NAMES[index]);
    *name_length = (int)strlen(name) + 1;
    *verbosity = *class = *bind = *readonly = *continuous = *atomic = 0;
    (void)type, (void)values, (void)text, (void)text_length;
    return MPI_SUCCESS;
}

int PMPI_T_pvar_session_create(MPI_T_pvar_session *session)
{
    *session = NULL;
    return MPI_SUCCESS;
}

int PMPI_T_pvar_session_free(MPI_T_pvar_session *session)
{
    *session = NULL;
    return MPI_SUCCESS;
}

int PMPI_T_pvar_handle_alloc(MPI_T_pvar_session session, int index, void *object,
                             MPI_T_pvar_handle *handle, int *count)
{
    (void)session, (void)object;
    *handle = (MPI_T_pvar_handle)&VALUES[index];
    *count = 1;
    return MPI_SUCCESS;
}

int PMPI_T_pvar_read(MPI_T_pvar_session session, MPI_T_pvar_handle handle, void *buffer)
{
    (void)session;
    memcpy(buffer, (const void *)handle, sizeof VALUES[0]);
    return MPI_SUCCESS;
}
