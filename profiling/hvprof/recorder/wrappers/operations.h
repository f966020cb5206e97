/* The operations whose payload is counted: each with the number of its arguments in C, and where
 * among them, from 1 on, are those that count.
 *
 * A vector that all ranks hold or share out in the end (allgather, reduce_scatter, alltoall)
 * is counted whole, as nccl-tests does: its bandwidth formulas rest on that. Gather and
 * scatter are counted by this rank's piece. Received messages are counted by the size of their
 * buffer. */

/* A collective, its non-blocking twin and its persistent one. */
#define COLLECTIVE(Name, low, NAME, ARGUMENTS, ...)                                           \
    OPERATION(Name, low, NAME, .arguments = ARGUMENTS, .enter = enter_collective,             \
              .count = count_collective, __VA_ARGS__)                                          \
    OPERATION(I##low, i##low, I##NAME, .arguments = ARGUMENTS + 1,                           \
              .request = ARGUMENTS + 1, .enter = enter_collective, .count = count_collective,  \
              __VA_ARGS__)                                                                     \
    RECENT(Name##_init, low##_init, NAME##_INIT, .arguments = ARGUMENTS + 2,                  \
           .request = ARGUMENTS + 2, .enter = enter_together, .count = count_later,            \
           __VA_ARGS__)

COLLECTIVE(Barrier, barrier, BARRIER, 1, .comm = 1)
COLLECTIVE(Allreduce, allreduce, ALLREDUCE, 6, .comm = 6, .payload = {3, 4})
COLLECTIVE(Reduce, reduce, REDUCE, 7, .comm = 7, .peer = 6, .payload = {3, 4})
COLLECTIVE(Scan, scan, SCAN, 6, .comm = 6, .payload = {3, 4})
COLLECTIVE(Exscan, exscan, EXSCAN, 6, .comm = 6, .payload = {3, 4})
COLLECTIVE(Bcast, bcast, BCAST, 5, .comm = 5, .peer = 4, .payload = {2, 3})
COLLECTIVE(Allgather, allgather, ALLGATHER, 7, .comm = 7, .payload = {5, 6, RANKS})
COLLECTIVE(Allgatherv, allgatherv, ALLGATHERV, 8, .comm = 8, .payload = {5, 7, ELEMENTS})
COLLECTIVE(Reduce_scatter_block, reduce_scatter_block, REDUCE_SCATTER_BLOCK, 6, .comm = 6,
           .payload = {3, 4, RANKS})
COLLECTIVE(Reduce_scatter, reduce_scatter, REDUCE_SCATTER, 6, .comm = 6,
           .payload = {3, 4, ELEMENTS})
COLLECTIVE(Alltoall, alltoall, ALLTOALL, 7, .comm = 7, .payload = {5, 6, RANKS})
COLLECTIVE(Alltoallv, alltoallv, ALLTOALLV, 9, .comm = 9, .in_place = 1,
           .payload = {2, 4, ELEMENTS}, .in_place_payload = {6, 8, ELEMENTS})
COLLECTIVE(Alltoallw, alltoallw, ALLTOALLW, 9, .comm = 9, .in_place = 1,
           .payload = {2, 4, TYPED}, .in_place_payload = {6, 8, TYPED})
COLLECTIVE(Gather, gather, GATHER, 8, .comm = 8, .peer = 7, .in_place = 1,
           .payload = {2, 3}, .in_place_payload = {5, 6})
COLLECTIVE(Gatherv, gatherv, GATHERV, 9, .comm = 9, .peer = 8, .in_place = 1,
           .payload = {2, 3}, .in_place_payload = {5, 7, AT_ROOT})
COLLECTIVE(Scatter, scatter, SCATTER, 8, .comm = 8, .peer = 7, .in_place = 4,
           .payload = {5, 6}, .in_place_payload = {2, 3})
COLLECTIVE(Scatterv, scatterv, SCATTERV, 9, .comm = 9, .peer = 8, .in_place = 5,
           .payload = {6, 7}, .in_place_payload = {2, 4, AT_ROOT})
COLLECTIVE(Neighbor_allgather, neighbor_allgather, NEIGHBOR_ALLGATHER, 7, .comm = 7,
           .payload = {5, 6, SOURCES})
COLLECTIVE(Neighbor_allgatherv, neighbor_allgatherv, NEIGHBOR_ALLGATHERV, 8, .comm = 8,
           .payload = {5, 7, FROM_EACH})
COLLECTIVE(Neighbor_alltoall, neighbor_alltoall, NEIGHBOR_ALLTOALL, 7, .comm = 7,
           .payload = {5, 6, SOURCES})
COLLECTIVE(Neighbor_alltoallv, neighbor_alltoallv, NEIGHBOR_ALLTOALLV, 9, .comm = 9,
           .payload = {2, 4, TO_EACH})
COLLECTIVE(Neighbor_alltoallw, neighbor_alltoallw, NEIGHBOR_ALLTOALLW, 9, .comm = 9,
           .payload = {2, 4, TO_TYPED})

/* A blocking send, its non-blocking twin and its persistent one:
 * (buffer, count, type, to, tag, comm), (..., request). */
#define MESSAGE(...) .comm = 6, .peer = 4, .tag = 5, .payload = {2, 3}, __VA_ARGS__
#define REQUESTED(NAME, low, ...)                                                             \
    OPERATION(I##low, i##low, I##NAME, .arguments = 7, .request = 7, .enter = enter_message, \
              .count = count_message, MESSAGE(__VA_ARGS__))
#define STARTED_LATER(Name, low, NAME, ...)                                                   \
    OPERATION(Name##_init, low##_init, NAME##_INIT, .arguments = 7, .request = 7,             \
              .enter = enter_together, .count = count_later, MESSAGE(__VA_ARGS__))
#define SEND(Name, low, NAME)                                                                 \
    OPERATION(Name, low, NAME, .arguments = 6, .enter = enter_message,                        \
              .count = count_message, MESSAGE(.direction = TO))                                \
    REQUESTED(NAME, low, .direction = TO)                                                     \
    STARTED_LATER(Name, low, NAME, .direction = TO)

SEND(Send, send, SEND)
SEND(Ssend, ssend, SSEND)
SEND(Rsend, rsend, RSEND)
SEND(Bsend, bsend, BSEND)
OPERATION(Recv, recv, RECV, .arguments = 7, .status = 7, .enter = enter_message,
          .count = count_message, MESSAGE(.direction = FROM))
REQUESTED(RECV, recv, .direction = FROM)
STARTED_LATER(Recv, recv, RECV, .direction = FROM)

#define PARTITIONED(Name, low, NAME, DIRECTION)                                               \
    RECENT(Name, low, NAME, .arguments = 9, .comm = 7, .peer = 5, .tag = 6, .request = 9,     \
           .direction = DIRECTION, .payload = {3, 4, PARTITIONS}, .enter = enter_together,     \
           .count = count_later)
PARTITIONED(Psend_init, psend_init, PSEND_INIT, TO)
PARTITIONED(Precv_init, precv_init, PRECV_INIT, FROM)

/* (in, count, type, to, tag, out, count, type, from, tag, comm, status or request) */
#define BOTH_WAYS                                                                              \
    .arguments = 12, .comm = 11, .peer = 4, .from = 9, .tag = 10, .payload = {2, 3},           \
    .received = {7, 8}, .enter = enter_message, .count = count_sendrecv
/* (both, count, type, to, tag, from, tag, comm, status or request) */
#define REPLACING                                                                              \
    .arguments = 9, .comm = 8, .peer = 4, .from = 6, .tag = 7, .payload = {2, 3},              \
    .received = {2, 3}, .enter = enter_message, .count = count_sendrecv
OPERATION(Sendrecv, sendrecv, SENDRECV, .status = 12, BOTH_WAYS)
OPERATION(Sendrecv_replace, sendrecv_replace, SENDRECV_REPLACE, .status = 9, REPLACING)
RECENT(Isendrecv, isendrecv, ISENDRECV, .request = 12, BOTH_WAYS)
RECENT(Isendrecv_replace, isendrecv_replace, ISENDRECV_REPLACE, .request = 9, REPLACING)

/* Calls that wait for requests: `from` is how many there are. */
OPERATION(Wait, wait, WAIT, .arguments = 2, .request = 1, .status = 2,
          .enter = enter_wait_for_requests, .count = count_wait_for_one)
OPERATION(Waitall, waitall, WAITALL, .arguments = 3, .from = 1, .request = 2,
          .enter = enter_wait_for_requests, .count = count_wait_for_all)
OPERATION(Waitany, waitany, WAITANY, .arguments = 4, .from = 1, .request = 2, .status = 4,
          .enter = enter_wait_for_requests, .count = count_wait_for_any)
OPERATION(Waitsome, waitsome, WAITSOME, .arguments = 5, .from = 1, .request = 2,
          .enter = enter_wait_for_requests, .count = count_wait_for_some)
OPERATION(Test, test, TEST, .arguments = 3, .request = 1, .status = 3,
          .enter = enter_wait_for_requests, .count = count_test_of_one)
OPERATION(Testall, testall, TESTALL, .arguments = 4, .from = 1, .request = 2,
          .enter = enter_wait_for_requests, .count = count_test_of_all)
OPERATION(Testany, testany, TESTANY, .arguments = 5, .from = 1, .request = 2, .status = 5,
          .enter = enter_wait_for_requests, .count = count_test_of_any)
OPERATION(Testsome, testsome, TESTSOME, .arguments = 5, .from = 1, .request = 2,
          .enter = enter_wait_for_requests, .count = count_test_of_some)
OPERATION(Start, start, START, .arguments = 1, .request = 1, .enter = enter_plainly,
          .count = count_start)
OPERATION(Startall, startall, STARTALL, .arguments = 2, .from = 1, .request = 2,
          .enter = enter_plainly, .count = count_start)

OPERATION(Probe, probe, PROBE, .arguments = 4, .peer = 1, .tag = 2, .comm = 3, .status = 4,
          .enter = enter_message, .count = count_probed)
OPERATION(Mprobe, mprobe, MPROBE, .arguments = 5, .peer = 1, .tag = 2, .comm = 3, .status = 5,
          .enter = enter_message, .count = count_matching_probe)
OPERATION(Iprobe, iprobe, IPROBE, .arguments = 5, .peer = 1, .tag = 2, .comm = 3,
          .enter = enter_message, .count = count_test_of_message)
OPERATION(Improbe, improbe, IMPROBE, .arguments = 6, .peer = 1, .tag = 2, .comm = 3, .status = 6,
          .enter = enter_message, .count = count_matching_test)
OPERATION(Mrecv, mrecv, MRECV, .arguments = 5, .enter = enter_receive_of_matched,
          .count = count_received_match)
OPERATION(Imrecv, imrecv, IMRECV, .arguments = 5, .request = 5,
          .enter = enter_receive_of_matched, .count = count_received_match)

/* Memory of another rank; those that make a request are waited for as any other. */
#define ONE_SIDED(Name, low, NAME, ARGUMENTS, ...)                                            \
    OPERATION(Name, low, NAME, .arguments = ARGUMENTS, .payload = {__VA_ARGS__},              \
              .enter = enter_plainly, .count = count_payload)
ONE_SIDED(Put, put, PUT, 8, 2, 3)
ONE_SIDED(Get, get, GET, 8, 2, 3)
ONE_SIDED(Accumulate, accumulate, ACCUMULATE, 9, 2, 3)
ONE_SIDED(Get_accumulate, get_accumulate, GET_ACCUMULATE, 12, 2, 3)
ONE_SIDED(Rput, rput, RPUT, 9, 2, 3)
ONE_SIDED(Rget, rget, RGET, 9, 2, 3)
ONE_SIDED(Raccumulate, raccumulate, RACCUMULATE, 10, 2, 3)
ONE_SIDED(Rget_accumulate, rget_accumulate, RGET_ACCUMULATE, 13, 2, 3)
ONE_SIDED(Fetch_and_op, fetch_and_op, FETCH_AND_OP, 7, 0, 3)
ONE_SIDED(Compare_and_swap, compare_and_swap, COMPARE_AND_SWAP, 7, 0, 4)

/* Files: (file, buffer, count, type, ...), or (file, offset, buffer, count, type, ...). */
#define AT_POINTER(MACRO, Name, low, NAME, ARGUMENTS)                                         \
    MACRO(File_##Name, file_##low, FILE_##NAME, .arguments = ARGUMENTS, .payload = {3, 4},    \
          .enter = enter_plainly, .count = count_payload)
#define AT_OFFSET(MACRO, Name, low, NAME, ARGUMENTS)                                          \
    MACRO(File_##Name, file_##low, FILE_##NAME, .arguments = ARGUMENTS, .payload = {4, 5},    \
          .enter = enter_plainly, .count = count_payload)
#define FILE_OPERATIONS(low, NAME)                                                            \
    AT_POINTER(OPERATION, low, low, NAME, 5)                                                 \
    AT_POINTER(OPERATION, low##_all, low##_all, NAME##_ALL, 5)                               \
    AT_POINTER(OPERATION, low##_all_begin, low##_all_begin, NAME##_ALL_BEGIN, 4)             \
    AT_POINTER(OPERATION, low##_shared, low##_shared, NAME##_SHARED, 5)                      \
    AT_POINTER(OPERATION, low##_ordered, low##_ordered, NAME##_ORDERED, 5)                   \
    AT_POINTER(OPERATION, low##_ordered_begin, low##_ordered_begin, NAME##_ORDERED_BEGIN, 4) \
    AT_POINTER(OPERATION, i##low, i##low, I##NAME, 5)                                        \
    AT_POINTER(RECENT, i##low##_all, i##low##_all, I##NAME##_ALL, 5)                         \
    AT_POINTER(OPERATION, i##low##_shared, i##low##_shared, I##NAME##_SHARED, 5)             \
    AT_OFFSET(OPERATION, low##_at, low##_at, NAME##_AT, 6)                                   \
    AT_OFFSET(OPERATION, low##_at_all, low##_at_all, NAME##_AT_ALL, 6)                       \
    AT_OFFSET(OPERATION, low##_at_all_begin, low##_at_all_begin, NAME##_AT_ALL_BEGIN, 5)     \
    AT_OFFSET(OPERATION, i##low##_at, i##low##_at, I##NAME##_AT, 6)                          \
    AT_OFFSET(RECENT, i##low##_at_all, i##low##_at_all, I##NAME##_AT_ALL, 6)
FILE_OPERATIONS(read, READ)
FILE_OPERATIONS(write, WRITE)

/* Communicators: their parent, and where the new one is. */
#define CREATES(Name, low, NAME, PARENT, MADE)                                                \
    OPERATION(Name, low, NAME, .arguments = MADE, .comm = PARENT, .request = MADE,            \
              .enter = enter_together, .count = count_creation)
CREATES(Comm_dup, comm_dup, COMM_DUP, 1, 2)
CREATES(Comm_dup_with_info, comm_dup_with_info, COMM_DUP_WITH_INFO, 1, 3)
CREATES(Comm_split, comm_split, COMM_SPLIT, 1, 4)
CREATES(Comm_split_type, comm_split_type, COMM_SPLIT_TYPE, 1, 5)
CREATES(Comm_create, comm_create, COMM_CREATE, 1, 3)
CREATES(Comm_create_group, comm_create_group, COMM_CREATE_GROUP, 1, 4)
CREATES(Cart_create, cart_create, CART_CREATE, 1, 6)
CREATES(Cart_sub, cart_sub, CART_SUB, 1, 3)
CREATES(Graph_create, graph_create, GRAPH_CREATE, 1, 6)
CREATES(Dist_graph_create, dist_graph_create, DIST_GRAPH_CREATE, 1, 9)
CREATES(Dist_graph_create_adjacent, dist_graph_create_adjacent, DIST_GRAPH_CREATE_ADJACENT, 1, 10)
CREATES(Intercomm_create, intercomm_create, INTERCOMM_CREATE, 1, 6)
CREATES(Intercomm_merge, intercomm_merge, INTERCOMM_MERGE, 1, 3)
