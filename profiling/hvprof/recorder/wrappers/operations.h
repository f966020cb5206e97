/* The operations that are counted, and what is the size of each: included once for MPI's
 * int counts and once for the large counts of MPI 4 (C(Allreduce) is MPI_Allreduce_c there).
 *
 * A vector that all ranks hold or share out in the end (allgather, reduce_scatter, alltoall)
 * is counted whole, as nccl-tests does: its bandwidth formulas rest on that. Gather and
 * scatter are counted by this rank's piece. */
#define IN_OUT const void *in, void *out

COLLECTIVE(Allreduce, allreduce,
           (IN_OUT, COUNT count, MPI_Datatype type, MPI_Op op, MPI_Comm comm),
           (in, out, count, type, op, comm), comm, type, bytes_of(count, type))

ROOTED(Reduce, reduce,
       (IN_OUT, COUNT count, MPI_Datatype type, MPI_Op op, int root, MPI_Comm comm),
       (in, out, count, type, op, root, comm), comm, type, bytes_of(count, type), root)

COLLECTIVE(Scan, scan,
           (IN_OUT, COUNT count, MPI_Datatype type, MPI_Op op, MPI_Comm comm),
           (in, out, count, type, op, comm), comm, type, bytes_of(count, type))

COLLECTIVE(Exscan, exscan,
           (IN_OUT, COUNT count, MPI_Datatype type, MPI_Op op, MPI_Comm comm),
           (in, out, count, type, op, comm), comm, type, bytes_of(count, type))

ROOTED(Bcast, bcast,
       (void *buffer, COUNT count, MPI_Datatype type, int root, MPI_Comm comm),
       (buffer, count, type, root, comm), comm, type, bytes_of(count, type), root)

COLLECTIVE(Allgather, allgather,
           (const void *in, COUNT in_count, MPI_Datatype in_type, void *out, COUNT count,
            MPI_Datatype type, MPI_Comm comm),
           (in, in_count, in_type, out, count, type, comm), comm, type,
           bytes_of(count, type) * (uint64_t)ranks_of(comm))

COLLECTIVE(Allgatherv, allgatherv,
           (const void *in, COUNT in_count, MPI_Datatype in_type, void *out, const COUNT *counts,
            const DISPLACEMENT *places, MPI_Datatype type, MPI_Comm comm),
           (in, in_count, in_type, out, counts, places, type, comm), comm, type,
           bytes_of((int64_t)SUM(counts, comm), type))

COLLECTIVE(Reduce_scatter_block, reduce_scatter_block,
           (IN_OUT, COUNT count, MPI_Datatype type, MPI_Op op, MPI_Comm comm),
           (in, out, count, type, op, comm), comm, type,
           bytes_of(count, type) * (uint64_t)ranks_of(comm))

COLLECTIVE(Reduce_scatter, reduce_scatter,
           (IN_OUT, const COUNT *counts, MPI_Datatype type, MPI_Op op, MPI_Comm comm),
           (in, out, counts, type, op, comm), comm, type,
           bytes_of((int64_t)SUM(counts, comm), type))

COLLECTIVE(Alltoall, alltoall,
           (const void *in, COUNT in_count, MPI_Datatype in_type, void *out, COUNT count,
            MPI_Datatype type, MPI_Comm comm),
           (in, in_count, in_type, out, count, type, comm), comm, type,
           bytes_of(count, type) * (uint64_t)ranks_of(comm))

COLLECTIVE(Alltoallv, alltoallv,
           (const void *in, const COUNT *in_counts, const DISPLACEMENT *in_places,
            MPI_Datatype in_type, void *out, const COUNT *counts, const DISPLACEMENT *places,
            MPI_Datatype type, MPI_Comm comm),
           (in, in_counts, in_places, in_type, out, counts, places, type, comm), comm, type,
           in == MPI_IN_PLACE ? bytes_of((int64_t)SUM(counts, comm), type)
                              : bytes_of((int64_t)SUM(in_counts, comm), in_type))

/* Each part has a type, so that the whole has none. */
COLLECTIVE(Alltoallw, alltoallw,
           (const void *in, const COUNT *in_counts, const DISPLACEMENT *in_places,
            const MPI_Datatype *in_types, void *out, const COUNT *counts,
            const DISPLACEMENT *places, const MPI_Datatype *types, MPI_Comm comm),
           (in, in_counts, in_places, in_types, out, counts, places, types, comm), comm,
           mpi.no_type,
           in == MPI_IN_PLACE ? BYTES_OF_ALL(counts, types, comm)
                              : BYTES_OF_ALL(in_counts, in_types, comm))

/* A negative root is MPI_ROOT or MPI_PROC_NULL, between two groups: nothing of this rank's. */
ROOTED(Gather, gather,
       (const void *in, COUNT in_count, MPI_Datatype in_type, void *out, COUNT count,
        MPI_Datatype type, int root, MPI_Comm comm),
       (in, in_count, in_type, out, count, type, root, comm), comm,
       in == MPI_IN_PLACE ? type : in_type,
       root < 0             ? 0
       : in == MPI_IN_PLACE ? bytes_of(count, type)
                            : bytes_of(in_count, in_type),
       root)

ROOTED(Gatherv, gatherv,
       (const void *in, COUNT in_count, MPI_Datatype in_type, void *out, const COUNT *counts,
        const DISPLACEMENT *places, MPI_Datatype type, int root, MPI_Comm comm),
       (in, in_count, in_type, out, counts, places, type, root, comm), comm,
       in == MPI_IN_PLACE ? type : in_type,
       root < 0             ? 0
       : in == MPI_IN_PLACE ? bytes_of(AT(counts, root), type)
                            : bytes_of(in_count, in_type),
       root)

ROOTED(Scatter, scatter,
       (const void *in, COUNT in_count, MPI_Datatype in_type, void *out, COUNT count,
        MPI_Datatype type, int root, MPI_Comm comm),
       (in, in_count, in_type, out, count, type, root, comm), comm,
       out == MPI_IN_PLACE ? in_type : type,
       root < 0              ? 0
       : out == MPI_IN_PLACE ? bytes_of(in_count, in_type)
                             : bytes_of(count, type),
       root)

ROOTED(Scatterv, scatterv,
       (const void *in, const COUNT *in_counts, const DISPLACEMENT *in_places,
        MPI_Datatype in_type, void *out, COUNT count, MPI_Datatype type, int root,
        MPI_Comm comm),
       (in, in_counts, in_places, in_type, out, count, type, root, comm), comm,
       out == MPI_IN_PLACE ? in_type : type,
       root < 0              ? 0
       : out == MPI_IN_PLACE ? bytes_of(AT(in_counts, root), in_type)
                             : bytes_of(count, type),
       root)

/* Received messages are counted by the size of their buffer. */
SEND(Send, Isend, send)
SEND(Ssend, Issend, ssend)
SEND(Rsend, Irsend, rsend)
SEND(Bsend, Ibsend, bsend)

WRAP(C(Recv), "recv",
     (void *out, COUNT count, MPI_Datatype type, int from, int tag, MPI_Comm comm,
      MPI_Status *status),
     (out, count, type, from, tag, comm, seen(status)),
     ENTER(comm, type, bytes_of(count, type), from, false),
     CALL(comm, type, bytes_of(count, type), seen(status)->MPI_SOURCE, tag, false, FROM, NULL))

MESSAGE(C(Irecv), "irecv",
        (void *out, COUNT count, MPI_Datatype type, int from, int tag, MPI_Comm comm,
         MPI_Request *request),
        (out, count, type, from, tag, comm, request), comm, type, bytes_of(count, type), from, tag,
        FROM, request)

/* The receive is what it is blocked on. */
EXCHANGE(C(Sendrecv), "sendrecv",
         (const void *in, COUNT in_count, MPI_Datatype in_type, int to, int in_tag, void *out,
          COUNT count, MPI_Datatype type, int from, int tag, MPI_Comm comm, MPI_Status *status),
         (in, in_count, in_type, to, in_tag, out, count, type, from, tag, comm, seen(status)), comm,
         in_type, bytes_of(in_count, in_type), to, seen(status)->MPI_SOURCE,
         bytes_of(count, type), tag)

EXCHANGE(C(Sendrecv_replace), "sendrecv_replace",
         (void *both, COUNT count, MPI_Datatype type, int to, int in_tag, int from, int tag,
          MPI_Comm comm, MPI_Status *status),
         (both, count, type, to, in_tag, from, tag, comm, seen(status)), comm, type,
         bytes_of(count, type), to, seen(status)->MPI_SOURCE, bytes_of(count, type), tag)

/* A persistent message is counted when it is started. */
NOTED(C(Send_init),
      (const void *in, COUNT count, MPI_Datatype type, int to, int tag, MPI_Comm comm,
       MPI_Request *request),
      (in, count, type, to, tag, comm, request), TO, comm, to, bytes_of(count, type), request)

NOTED(C(Ssend_init),
      (const void *in, COUNT count, MPI_Datatype type, int to, int tag, MPI_Comm comm,
       MPI_Request *request),
      (in, count, type, to, tag, comm, request), TO, comm, to, bytes_of(count, type), request)

NOTED(C(Recv_init),
      (void *out, COUNT count, MPI_Datatype type, int from, int tag, MPI_Comm comm,
       MPI_Request *request),
      (out, count, type, from, tag, comm, request), FROM, comm, from, bytes_of(count, type),
      request)

/* A message that a probe has matched. */
WRAP(C(Mrecv), "mrecv",
     (void *out, COUNT count, MPI_Datatype type, MPI_Message *matched, MPI_Status *status),
     (out, count, type, note_taken(matched), status), PLAIN,
     count_matched(into, &self, begin_ns, end_ns, count, type, NULL))

WRAP(C(Imrecv), "imrecv",
     (void *out, COUNT count, MPI_Datatype type, MPI_Message *matched, MPI_Request *request),
     (out, count, type, note_taken(matched), request), PLAIN,
     count_matched(into, &self, begin_ns, end_ns, count, type, request))

ONE_SIDED(C(Put), "put",
          (const void *in, COUNT count, MPI_Datatype type, int to, MPI_Aint place,
           COUNT count_there, MPI_Datatype type_there, MPI_Win window),
          (in, count, type, to, place, count_there, type_there, window), count, type)

ONE_SIDED(C(Get), "get",
          (void *out, COUNT count, MPI_Datatype type, int from, MPI_Aint place,
           COUNT count_there, MPI_Datatype type_there, MPI_Win window),
          (out, count, type, from, place, count_there, type_there, window), count, type)

ONE_SIDED(C(Accumulate), "accumulate",
          (const void *in, COUNT count, MPI_Datatype type, int to, MPI_Aint place,
           COUNT count_there, MPI_Datatype type_there, MPI_Op op, MPI_Win window),
          (in, count, type, to, place, count_there, type_there, op, window), count, type)

ONE_SIDED(C(Get_accumulate), "get_accumulate",
          (const void *in, COUNT count, MPI_Datatype type, void *out, COUNT out_count,
           MPI_Datatype out_type, int to, MPI_Aint place, COUNT count_there,
           MPI_Datatype type_there, MPI_Op op, MPI_Win window),
          (in, count, type, out, out_count, out_type, to, place, count_there, type_there, op,
           window),
          count, type)
