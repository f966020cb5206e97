/* Functions needed of it, found when it starts. Handles that they write are read by handle_at(). */
#define MPI_FUNCTIONS(X)                                                                       \
    X(Comm_rank, comm_rank, (MPI_Comm, int *))                                                 \
    X(Comm_size, comm_size, (MPI_Comm, int *))                                                 \
    X(Comm_remote_size, comm_remote_size, (MPI_Comm, int *))                                   \
    X(Comm_test_inter, comm_test_inter, (MPI_Comm, int *))                                     \
    X(Comm_get_parent, comm_get_parent, (handle *))                                            \
    X(Comm_group, comm_group, (MPI_Comm, handle *))                                            \
    X(Comm_remote_group, comm_remote_group, (MPI_Comm, handle *))                              \
    X(Comm_dup, comm_dup, (MPI_Comm, handle *))                                                \
    X(Comm_free, comm_free, (handle *))                                                        \
    X(Group_size, group_size, (MPI_Group, int *))                                              \
    X(Group_translate_ranks, group_translate_ranks,                                            \
      (MPI_Group, int, const int *, MPI_Group, int *))                                         \
    X(Group_rank, group_rank, (MPI_Group, int *))                                              \
    X(Group_free, group_free, (handle *))                                                      \
    X(Type_size, type_size, (MPI_Datatype, int *))                                             \
    X(Type_get_name, type_get_name, (MPI_Datatype, char *, int *))                             \
    X(Topo_test, topo_test, (MPI_Comm, int *))                                                 \
    X(Cartdim_get, cartdim_get, (MPI_Comm, int *))                                             \
    X(Graph_neighbors_count, graph_neighbors_count, (MPI_Comm, int, int *))                    \
    X(Dist_graph_neighbors_count, dist_graph_neighbors_count, (MPI_Comm, int *, int *, int *)) \
    X(Allgather, allgather,                                                                    \
      (const void *, int, MPI_Datatype, void *, int, MPI_Datatype, MPI_Comm))                  \
    X(Send, send, (const void *, int, MPI_Datatype, int, int, MPI_Comm))                       \
    X(Recv, recv, (void *, int, MPI_Datatype, int, int, MPI_Comm, void *))                     \
    X(Test_cancelled, test_cancelled, (const void *, int *))                                   \
    X(Get_library_version, get_library_version, (char *, int *))
