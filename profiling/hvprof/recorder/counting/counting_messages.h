/* Counting of calls that are neither a collective nor a single message. */
#ifndef HVPROF_COUNTING_MESSAGES_H
#define HVPROF_COUNTING_MESSAGES_H

#include "counting.h"

/* The two messages of a call that sends and receives; it is blocked on the one it receives. */
static void count_exchange(struct recorder *into, MPI_Comm comm, int to, int tag,
                           uint64_t to_bytes, int from, uint64_t from_bytes, uint64_t blocked_ns)
{
    int communicator = comm_entry(into, comm), world = world_rank(communicator, to);
    note_sent(into, world, tag, communicator, to_bytes,
              add_to_partner(into, TO, world, 1, to_bytes, 0));
    add_to_partner(into, FROM, world_rank(communicator, from), 1, from_bytes, blocked_ns);
}

/* A persistent request is started: a call in the table, with its size and communicator. */
static void count_started(struct recorder *into, struct operation *operation, uint64_t begin_ns,
                          uint64_t time_ns, MPI_Request request)
{
    struct message message = message_of(request);
    struct kind kind = {.operation = id_of(into, operation), .algorithm = NATIVE,
                        .communicator = message.communicator, .source = SOURCE_MPI,
                        .traffic = traffic_on(message.communicator)};
    last_started = kind.traffic;
    list_this_thread();
    count(into, cell_key(kind, message.bytes), message.bytes, time_ns, 0);
    if (kind.traffic == DATA)
        add_to_partner(into, message.direction, world_rank(message.communicator, message.peer), 1,
                       message.bytes, time_ns);
    note_call(begin_ns, begin_ns + time_ns, kind.traffic);
}

/* Blocked until a message is there, which a receive counts. */
static void count_probe(struct recorder *into, struct operation *operation, uint64_t begin_ns,
                        uint64_t end_ns, MPI_Comm comm, int from)
{
    int communicator = comm_entry(into, comm);
    struct kind kind = {.operation = id_of(into, operation), .algorithm = NATIVE,
                        .communicator = communicator, .source = SOURCE_MPI,
                        .traffic = traffic_on(communicator)};
    uint64_t key = cell_key(kind, 0);
    list_this_thread();
    count(into, key, 0, end_ns - begin_ns, 0);
    if (kind.traffic == DATA)
        add_to_partner(into, FROM, world_rank(communicator, from), 0, 0, end_ns - begin_ns);
    note_call(begin_ns, end_ns, kind.traffic);
    trace(into, (struct event){.begin_ns = begin_ns, .end_ns = end_ns, .key = key,
                               .thread = thread_id(), .peer = from});
}

/* Matched messages are noted as requests are, by their handles. */
static void note_matched(struct recorder *into, MPI_Message matched, MPI_Comm comm, int from)
{
    note_started(matched, (struct message){FROM, comm_entry(into, comm), from, 0});
}

/* The receive of the matched message that this thread took last. */
static void count_matched(struct recorder *into, struct operation *operation, uint64_t begin_ns,
                          uint64_t end_ns, int64_t elements, MPI_Datatype type,
                          const MPI_Request *request)
{
    struct message message = awaited.of[0];
    forget_started(awaited.requests[0]);
    enum traffic traffic = traffic_on(message.communicator);
    struct kind kind = {.operation = id_of(into, operation), .algorithm = NATIVE,
                        .datatype = datatype_of(into, type).name,
                        .communicator = message.communicator, .source = SOURCE_MPI,
                        .traffic = traffic};
    message.bytes = bytes_of(elements, type);
    uint64_t key = cell_key(kind, message.bytes);
    int from = world_rank(message.communicator, message.peer);
    list_this_thread();
    count(into, key, message.bytes, end_ns - begin_ns, 0);
    if (traffic == DATA)
        add_to_partner(into, message.direction, from, 1, message.bytes, end_ns - begin_ns);
    if (request)
        note_started(*request, message);
    note_call(begin_ns, end_ns, traffic);
    trace(into, (struct event){.begin_ns = begin_ns, .end_ns = end_ns, .key = key,
                               .bytes = message.bytes, .thread = thread_id(),
                               .peer = message.peer});
}

/* A call that writes or reads another rank's memory, or a file. Its communicator is not known. */
static void count_moved(struct recorder *into, struct operation *operation, uint64_t begin_ns,
                        uint64_t end_ns, uint64_t bytes, MPI_Datatype type)
{
    struct kind kind = {.operation = id_of(into, operation), .algorithm = NATIVE,
                        .datatype = datatype_of(into, type).name, .traffic = data_or_tuning(),
                        .source = SOURCE_MPI};
    uint64_t key = cell_key(kind, bytes);
    list_this_thread();
    count(into, key, bytes, end_ns - begin_ns, 0);
    note_call(begin_ns, end_ns, kind.traffic);
    trace(into, (struct event){.begin_ns = begin_ns, .end_ns = end_ns, .key = key, .bytes = bytes,
                               .thread = thread_id(), .peer = NO_PEER});
}

/* A call that moves no data of the program's, on a communicator or, with 0, on none. */
static void count_plain(struct recorder *into, struct operation *operation, uint64_t begin_ns,
                        uint64_t end_ns, int communicator)
{
    struct kind kind = {.operation = id_of(into, operation), .algorithm = NATIVE,
                        .communicator = communicator, .source = SOURCE_MPI,
                        .traffic = traffic_on(communicator)};
    uint64_t key = cell_key(kind, 0);
    list_this_thread();
    count(into, key, 0, end_ns - begin_ns, 0);
    note_call(begin_ns, end_ns, kind.traffic);
    trace(into, (struct event){.begin_ns = begin_ns, .end_ns = end_ns, .key = key,
                               .thread = thread_id(), .peer = NO_PEER});
}

#endif
