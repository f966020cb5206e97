/* Counting of a finished call: its kind of traffic, and its cell in the recording. */
#ifndef HVPROF_COUNTING_H
#define HVPROF_COUNTING_H

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cells.h"
#include "../mpi/communicators.h"
#include "../current.h"
#include "../mpi/datatypes.h"
#include "../files.h"
#include "messages.h"
#include "../operation.h"
#include "steps.h"
#include "trace.h"

enum { NO_TAG = -1, ROLL_CALL_TAG = 24301, ROLL_CALL_ANSWER_TAG = 24302 };

struct call {
    MPI_Comm comm;
    MPI_Datatype type;
    uint64_t bytes;
    int peer, tag;
    bool collective;
    void *caller;
    enum direction direction; /* of a message */
    const MPI_Request *request; /* that the call began, or NULL */
};

/* How often hvd_ext began, and has not ended, to exchange for the sake of measuring. */
static _Atomic int tuning;

static enum traffic data_or_tuning(void)
{
    return atomic_load_explicit(&tuning, memory_order_relaxed) > 0 ? TUNING : DATA;
}

/* The traffic of a call on a communicator (0: none), unless the call is of a special kind. */
static enum traffic traffic_on(int communicator)
{
    return known[communicator].transport ? TRANSPORT : data_or_tuning();
}

/* Control is Horovod's coordination, and hvd_ext's monitored barriers, which have tags of their own. */
static enum traffic classify(const struct call *call, int communicator, bool control_type)
{
    if (known[communicator].transport)
        return TRANSPORT;
    bool roll_call = call->tag == ROLL_CALL_TAG || call->tag == ROLL_CALL_ANSWER_TAG;
    bool control = control_type && (roll_call || called_by_horovod(call->caller));
    return control ? CONTROL : data_or_tuning();
}

/* Traffic of the last non-blocking call of a thread: its next wait is of that traffic. */
static _Thread_local enum traffic last_started;

/* Returns its kind of traffic. */
static enum traffic count_call(struct recorder *into, struct operation *operation,
                               uint64_t begin_ns, uint64_t end_ns, struct call call)
{
    struct datatype datatype = datatype_of(into, call.type);
    int communicator = comm_entry(into, call.comm);
    enum traffic traffic = classify(&call, communicator, datatype.control);
    struct kind kind = {.operation = id_of(into, operation), .algorithm = NATIVE,
                        .datatype = datatype.name, .communicator = communicator,
                        .traffic = traffic, .source = SOURCE_MPI};
    uint64_t key = cell_key(kind, call.bytes);
    uint32_t sequence = call.collective ? collective_number(communicator) : 0;
    list_this_thread();
    if (operation->name[0] == 'i')
        last_started = traffic;
    count(into, key, call.bytes, end_ns - begin_ns, 0);
    if (call.direction && traffic == DATA) {
        int partner = world_rank(communicator, call.peer);
        uint64_t number = add_to_partner(into, call.direction, partner, 1, call.bytes,
                                         end_ns - begin_ns);
        if (call.direction == TO)
            note_sent(into, partner, call.tag, communicator, call.bytes, number);
    }
    if (call.request) {
        note_started(*call.request, (struct message){traffic == DATA ? call.direction : NO_DIRECTION,
                                                     communicator, call.peer, call.bytes});
        remember(*call.request);
    }
    note_call(begin_ns, end_ns, traffic);
    trace(into, (struct event){.begin_ns = begin_ns, .end_ns = end_ns, .key = key,
                               .bytes = call.bytes, .sequence = sequence,
                               .thread = thread_id(), .peer = call.peer});
    return traffic;
}

/* A call that waits. `index`: which of the awaited requests it completed, the first of several. */
static void count_wait(struct recorder *into, struct operation *operation, uint64_t begin_ns,
                       uint64_t end_ns, int index, int source, struct ended ended)
{
    struct kind kind = {.operation = id_of(into, operation), .algorithm = NATIVE,
                        .traffic = last_started, .source = SOURCE_MPI};
    uint64_t key = cell_key(kind, 0);
    count(into, key, ended.bytes, end_ns - begin_ns, ended.requests);
    if (index != NONE_AWAITED)
        blame_awaited(into, index, source, end_ns - begin_ns);
    list_this_thread();
    note_call(begin_ns, end_ns, last_started);
    trace(into, (struct event){.begin_ns = begin_ns, .end_ns = end_ns, .key = key,
                               .thread = thread_id(), .peer = NO_PEER});
}

#endif
