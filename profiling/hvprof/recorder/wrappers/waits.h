/* Calls that wait for requests, start persistent ones, probe, or synchronize windows: none of
 * them has a count of elements; and those of one element. */
#define WAITED(INDEX, SOURCE) count_wait(into, &self, begin_ns, end_ns, INDEX, SOURCE)
#define UNADDRESSED WAITED(NONE_AWAITED, NO_PEER)

WRAP(MPI_Wait, "wait", (MPI_Request *request, MPI_Status *status),
     (request + 0 * note_awaited(1, request), seen(status)),
     enter_wait(into, &self, begin_ns, 1, request, true), WAITED(0, seen(status)->MPI_SOURCE))

WRAP(MPI_Waitall, "waitall", (int count, MPI_Request *requests, MPI_Status *statuses),
     (note_awaited(count, requests), requests, statuses),
     enter_wait(into, &self, begin_ns, count, requests, true), WAITED(-1, NO_PEER))

WRAP(MPI_Waitany, "waitany", (int count, MPI_Request *requests, int *index, MPI_Status *status),
     (note_awaited(count, requests), requests, index, seen(status)),
     enter_wait(into, &self, begin_ns, count, requests, false),
     *index < 0 ? UNADDRESSED : WAITED(*index, seen(status)->MPI_SOURCE))

WRAP(MPI_Waitsome, "waitsome",
     (int count, MPI_Request *requests, int *done, int *indices, MPI_Status *statuses),
     (note_awaited(count, requests), requests, done, indices, statuses),
     enter_wait(into, &self, begin_ns, count, requests, false),
     *done < 1 ? UNADDRESSED : WAITED(indices[0], NO_PEER))

WRAP(MPI_Start, "start", (MPI_Request *request), (request), PLAIN,
     count_started(into, &self, begin_ns, end_ns, 1, request))
WRAP(MPI_Startall, "startall", (int count, MPI_Request *requests), (count, requests),
     PLAIN,
     count_started(into, &self, begin_ns, end_ns, count, requests))

WRAP(MPI_Probe, "probe", (int from, int tag, MPI_Comm comm, MPI_Status *status),
     (from, tag, comm, seen(status)), ENTER(comm, mpi.byte, 0, from, false),
     count_probe(into, &self, begin_ns, end_ns, comm, seen(status)->MPI_SOURCE))
WRAP(MPI_Mprobe, "mprobe",
     (int from, int tag, MPI_Comm comm, MPI_Message *message, MPI_Status *status),
     (from, tag, comm, message, seen(status)), ENTER(comm, mpi.byte, 0, from, false),
     count_probe(into, &self, begin_ns, end_ns, comm, seen(status)->MPI_SOURCE);
     note_matched(into, *message, comm, seen(status)->MPI_SOURCE))
WRAP(MPI_Improbe, "improbe",
     (int from, int tag, MPI_Comm comm, int *found, MPI_Message *message, MPI_Status *status),
     (from, tag, comm, found, message, seen(status)), PLAIN, UNADDRESSED;
     if (*found) note_matched(into, *message, comm, seen(status)->MPI_SOURCE))
WRAP(MPI_Iprobe, "iprobe",
     (int from, int tag, MPI_Comm comm, int *found, MPI_Status *status),
     (from, tag, comm, found, status), PLAIN, UNADDRESSED)

/* Each call handles one element, so MPI 4 has no version with a large count. */
ONE_SIDED(MPI_Fetch_and_op, "fetch_and_op",
          (const void *in, void *out, MPI_Datatype type, int to, MPI_Aint place, MPI_Op op,
           MPI_Win window),
          (in, out, type, to, place, op, window), 1, type)
ONE_SIDED(MPI_Compare_and_swap, "compare_and_swap",
          (const void *in, const void *expected, void *out, MPI_Datatype type, int to,
           MPI_Aint place, MPI_Win window),
          (in, expected, out, type, to, place, window), 1, type)

#define WINDOW(SYMBOL, SHOWN, PARAMETERS, ARGUMENTS)                                           \
    WRAP(SYMBOL, SHOWN, PARAMETERS, ARGUMENTS, PLAIN, UNADDRESSED)

WINDOW(MPI_Win_fence, "win_fence", (int assertion, MPI_Win window), (assertion, window))
WINDOW(MPI_Win_lock, "win_lock", (int kind, int rank, int assertion, MPI_Win window),
       (kind, rank, assertion, window))
WINDOW(MPI_Win_unlock, "win_unlock", (int rank, MPI_Win window), (rank, window))
WINDOW(MPI_Win_lock_all, "win_lock_all", (int assertion, MPI_Win window), (assertion, window))
WINDOW(MPI_Win_unlock_all, "win_unlock_all", (MPI_Win window), (window))
WINDOW(MPI_Win_flush, "win_flush", (int rank, MPI_Win window), (rank, window))
WINDOW(MPI_Win_flush_all, "win_flush_all", (MPI_Win window), (window))
WINDOW(MPI_Win_flush_local, "win_flush_local", (int rank, MPI_Win window), (rank, window))
WINDOW(MPI_Win_flush_local_all, "win_flush_local_all", (MPI_Win window), (window))
WINDOW(MPI_Win_post, "win_post", (MPI_Group group, int assertion, MPI_Win window),
       (group, assertion, window))
WINDOW(MPI_Win_start, "win_start", (MPI_Group group, int assertion, MPI_Win window),
       (group, assertion, window))
WINDOW(MPI_Win_complete, "win_complete", (MPI_Win window), (window))
WINDOW(MPI_Win_wait, "win_wait", (MPI_Win window), (window))
