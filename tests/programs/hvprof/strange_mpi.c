/* An MPI library of an unknown kind, and with -DPROGRAM a program of it. Where a function would be
 * called by another interface than the library's, the program ends with 1. */
#ifdef PROGRAM
#include <stdio.h>
int MPI_Init(void *, void *), MPI_Bcast(void *, int, void *, int, void *), MPI_Finalize(void);
void mpi_barrier_(void *, int *);

/* The program's own function, which has the name that some compilers give to Fortran's. */
int mpi_send(int one)
{
    return one;
}

int main(void)
{
    int code = 1;
    char type, comm;
    MPI_Init(NULL, NULL);
    if (MPI_Bcast(&code, 7, &type, 3, &comm) != 7 + 3)
        return 1;
    mpi_barrier_(&comm, &code);
    MPI_Finalize();
    printf("%d\n", code + mpi_send(1));
    return 0;
}
#else
#include <string.h>
#define FUNCTION(name) int PMPI_##name(void) { return 0; }
#define WITHOUT_PROFILED(name) int MPI_##name(void) { return 0; }
FUNCTION(Init) FUNCTION(Finalize) FUNCTION(Comm_rank) FUNCTION(Comm_size)
FUNCTION(Comm_remote_size) FUNCTION(Comm_test_inter) FUNCTION(Comm_get_parent)
FUNCTION(Comm_group) FUNCTION(Comm_remote_group) FUNCTION(Comm_dup) FUNCTION(Comm_free)
FUNCTION(Group_size) FUNCTION(Group_rank) FUNCTION(Group_translate_ranks) FUNCTION(Group_free) FUNCTION(Type_size)
FUNCTION(Type_get_name) FUNCTION(Topo_test) FUNCTION(Cartdim_get) FUNCTION(Graph_neighbors_count)
FUNCTION(Dist_graph_neighbors_count) FUNCTION(Allgather) FUNCTION(Send) FUNCTION(Recv)
FUNCTION(Test_cancelled)
WITHOUT_PROFILED(Init) WITHOUT_PROFILED(Finalize)

int PMPI_Bcast(void *buffer, int count, void *type, int root, void *comm)
{
    return buffer && type && comm ? count + root : 0;
}

int MPI_Bcast(void *buffer, int count, void *type, int root, void *comm)
{
    return PMPI_Bcast(buffer, count, type, root, comm);
}

/* It has no twin for profilers. */
void mpi_barrier_(void *comm, int *code)
{
    *code = comm ? 41 : 0;
}

int PMPI_Get_library_version(char *version, int *length)
{
    strcpy(version, "Strange MPI 1.0\nof nobody");
    return *length = (int)strlen(version), 0;
}
#endif
