/* What operations do before they call the program's MPI, and after a call that succeeded. */
#ifndef HVPROF_ROLES_H
#define HVPROF_ROLES_H

#include "../counting/counting_messages.h"
#include "../current.h"
#include "calling.h"

/* --- Before the call: nothing is asked of MPI, and no array is read ------------------------- */

static uint64_t bytes_before_call(const struct calling *call, struct payload payload)
{
    int64_t count = 0;
    int many = payload.times == RANKS ? here.ranks : 1;
    if (payload.type && (payload.times == ONCE || payload.times == RANKS))
        count = payload.count ? count_at(call, payload.count) : 1;
    return count ? bytes_before(count, type_of(call, payload)) * (uint64_t)many : 0;
}

/* Whether this test continues a loop of tests. */
static bool continues_polling(const struct calling *call)
{
    uint64_t gap_ns = call->begin_ns - call->polled_ns;
    bool often = polling.quick >= QUICK_TESTS;
    return call->polled_ns && gap_ns < (often ? PREEMPTED_NS : POLLING_NS);
}

/* When the call began that is shown: a long loop of tests is shown as one call. */
static uint64_t shown_since(const struct calling *call)
{
    bool polls = call->operation == polling.operation && continues_polling(call) &&
                 call->begin_ns - polling.since_ns > LONG_POLLING_NS;
    return polls ? polling.since_ns : call->begin_ns;
}

static void enter_addressed(struct calling *call, int peer, bool collective)
{
    struct payload payload = payload_of(call);
    int tag = call->operation->tag ? integer(call, call->operation->tag) : NO_TAG;
    uint64_t bytes;
    if (call->operation->status)
        see_status(call);
    call->comm = handle_of(call, COMM, call->operation->comm);
    enter_communicator(call->into, call->comm);
    bytes = has_payload(call) ? bytes_before_call(call, payload) : 0;
    enter(call->into, call->operation, shown_since(call),
          (struct entering){type_of(call, payload), bytes, peer, collective, call->caller,
                             tag < 0 ? 0 : (uint32_t)tag + 1, !collective});
}

static void enter_collective(struct calling *call)
{
    int root = call->operation->peer;
    enter_addressed(call, root ? integer(call, root) : NO_PEER, true);
}

/* A call that sends and receives is blocked on what it receives. */
static void enter_message(struct calling *call)
{
    const struct operation *operation = call->operation;
    enter_addressed(call, integer(call, operation->from ? operation->from : operation->peer),
                    false);
}

static void enter_plainly(struct calling *call)
{
    enter_plain(call->into, call->operation, call->begin_ns);
}

/* A call that ranks make together, or that is on a communicator at least. */
static void enter_together(struct calling *call)
{
    call->comm = handle_of(call, COMM, call->operation->comm);
    enter_uncounted(call->into, call->operation, call->begin_ns, call->comm);
}

static void enter_end_of_comm(struct calling *call)
{
    MPI_Comm gone = handle_in(call, COMM, 1, 0);
    enter_uncounted(call->into, call->operation, call->begin_ns, gone);
    forget_comm(gone); /* its handle may be another's next */
}

static void enter_change_of_type(struct calling *call)
{
    forget_types();
    enter_plainly(call);
}

static void enter_wait_for_requests(struct calling *call)
{
    static _Thread_local MPI_Request requests[AWAITED];
    const struct operation *operation = call->operation;
    int count = operation->from ? integer(call, operation->from) : 1;
    for (int i = 0; i < count && i < AWAITED; i++)
        requests[i] = handle_in(call, REQUEST, operation->request, i);
    if (operation->status)
        see_status(call);
    note_awaited(count, requests);
    enter_wait(call->into, call->operation, shown_since(call), count, requests);
}

static void forget_request(MPI_Request request)
{
    forget_started(request);
    forget_pending(request);
}

static void enter_end_of_request(struct calling *call)
{
    forget_request(handle_in(call, REQUEST, 1, 0)); /* its handle may be another's next */
    enter_plainly(call);
}

static void enter_receive_of_matched(struct calling *call)
{
    MPI_Request matched = handle_in(call, MESSAGE, 4, 0);
    note_awaited(1, &matched);
    enter_plainly(call);
}

/* --- After it ---------------------------------------------------------------------------- */

static enum traffic count_addressed(struct calling *call, int peer, bool collective)
{
    const struct operation *operation = call->operation;
    struct payload payload = payload_of(call);
    MPI_Request request =
        operation->request ? handle_in(call, REQUEST, operation->request, 0) : 0;
    struct call made = {.comm = call->comm,
                        .type = type_of(call, payload),
                        .bytes = has_payload(call) ? payload_bytes(call, payload) : 0,
                        .peer = peer,
                        .tag = operation->tag ? integer(call, operation->tag) : NO_TAG,
                        .collective = collective,
                        .caller = call->caller,
                        .direction = operation->direction,
                        .request = operation->request ? &request : NULL};
    return count_call(call->into, call->operation, call->begin_ns, call->end_ns, made);
}

static void count_collective(struct calling *call)
{
    int root = call->operation->peer;
    count_addressed(call, root ? integer(call, root) : NO_PEER, true);
}

static void count_message(struct calling *call)
{
    const struct operation *operation = call->operation;
    count_addressed(call, operation->status ? source(call) : integer(call, operation->peer), false);
}

static void count_sendrecv(struct calling *call)
{
    enum { SENT_TAG = 5 };
    const struct operation *operation = call->operation;
    int to = integer(call, operation->peer);
    int from = operation->status ? source(call) : integer(call, operation->from);
    if (count_addressed(call, to, false) != DATA)
        return;
    uint64_t received = payload_bytes(call, operation->received);
    if (operation->request)
        note_started(handle_in(call, REQUEST, operation->request, 0),
                     (struct message){FROM, comm_entry(call->into, call->comm), from, received});
    count_exchange(call->into, call->comm, to, integer(call, SENT_TAG), payload_bytes(call, operation->payload), from,
                   received, operation->request ? 0 : call->end_ns - call->begin_ns);
}

static void count_plainly(struct calling *call)
{
    count_plain(call->into, call->operation, call->begin_ns, call->end_ns, here.communicator);
}

/* A request that is made now and started later. */
static void count_later(struct calling *call)
{
    const struct operation *operation = call->operation;
    struct message message = {operation->direction, comm_entry(call->into, call->comm),
                              operation->peer ? integer(call, operation->peer) : NO_PEER,
                              has_payload(call) ? payload_bytes(call, payload_of(call)) : 0};
    note_started(handle_in(call, REQUEST, operation->request, 0), message);
    count_plainly(call);
}

static void count_start(struct calling *call)
{
    const struct operation *operation = call->operation;
    int count = operation->from ? integer(call, operation->from) : 1;
    uint64_t time_ns = count > 0 ? (call->end_ns - call->begin_ns) / (uint64_t)count : 0;
    for (int i = 0; i < count; i++)
        count_started(call->into, call->operation, call->begin_ns + (uint64_t)i * time_ns, time_ns,
                      handle_in(call, REQUEST, operation->request, i));
}

/* Requests that have ended, but for persistent ones, whose handles stay. */
static void forget_ended(struct calling *call)
{
    if (!call->operation->request)
        return;
    for (int i = 0; i < awaited.count; i++)
        if (handle_in(call, REQUEST, call->operation->request, i) != awaited.requests[i])
            forget_request(awaited.requests[i]);
}

/* The rank that an awaited message came from; a canceled receive has none. */
static int source_awaited(const struct calling *call)
{
    int rank = source(call), canceled = 0;
    if (rank >= 0)
        mpi.test_cancelled(address(call, call->operation->status), &canceled);
    return canceled ? NO_PEER : rank;
}

static void count_waited(struct calling *call, int index, int from)
{
    count_wait(call->into, call->operation, call->begin_ns, call->end_ns, index, from,
               ended_at(index));
    forget_ended(call);
}

/* (count, requests, completed, indices, statuses) */
static void count_wait_for_some(struct calling *call)
{
    int completed = integer_in(call, 3, 0);
    struct ended ended = {0};
    for (int i = 0; i < completed; i++)
        add_ended(&ended, index_in(call, 4, i));
    count_wait(call->into, call->operation, call->begin_ns, call->end_ns,
               completed > 0 ? index_in(call, 4, 0) : NONE_AWAITED, NO_PEER, ended);
    forget_ended(call);
}

static void count_synchronization(struct calling *call)
{
    count_waited(call, NONE_AWAITED, NO_PEER);
}

/* (request, status) */
static void count_wait_for_one(struct calling *call)
{
    count_waited(call, 0, source_awaited(call));
}

/* (count, requests, statuses) */
static void count_wait_for_all(struct calling *call)
{
    count_waited(call, ALL_AWAITED, NO_PEER);
}

/* (count, requests, index, status) */
static void count_wait_for_any(struct calling *call)
{
    int index = index_in(call, 3, 0);
    count_waited(call, index < 0 ? NONE_AWAITED : index, index < 0 ? NO_PEER : source_awaited(call));
}

/* A test that follows one that failed continues its wait: it counts from the end of that one,
 * unless the thread did something else for longer in between. */
static void follow_test(struct calling *call, bool done)
{
    bool quick = call->begin_ns - call->polled_ns < POLLING_NS;
    if (continues_polling(call))
        call->begin_ns = call->polled_ns;
    else
        polling.since_ns = call->begin_ns;
    polling.quick = quick ? polling.quick + 1 : 0;
    if (done) {
        end_of_stay(call->into, call->end_ns);
    } else {
        polled_ns = call->end_ns;
        polling.operation = call->operation;
        if (call->end_ns - polling.since_ns > LONG_POLLING_NS)
            stay_in_call(polling.since_ns);
    }
}

static void count_test(struct calling *call, bool done, int index, int from)
{
    follow_test(call, done);
    count_waited(call, done ? index : NONE_AWAITED, done ? from : NO_PEER);
}

/* (request, flag, status) */
static void count_test_of_one(struct calling *call)
{
    bool done = integer_in(call, 2, 0);
    count_test(call, done, 0, done ? source_awaited(call) : NO_PEER);
}

/* (count, requests, flag, statuses) */
static void count_test_of_all(struct calling *call)
{
    count_test(call, integer_in(call, 3, 0), ALL_AWAITED, NO_PEER);
}

/* (count, requests, index, flag, status) */
static void count_test_of_any(struct calling *call)
{
    int index = integer_in(call, 4, 0) ? index_in(call, 3, 0) : -1;
    count_test(call, index >= 0, index, index < 0 ? NO_PEER : source_awaited(call));
}

/* (count, requests, completed, indices, statuses) */
static void count_test_of_some(struct calling *call)
{
    follow_test(call, integer_in(call, 3, 0) > 0);
    count_wait_for_some(call);
}

/* (from, tag, comm, flag, status) */
static void count_test_of_message(struct calling *call)
{
    count_test(call, integer_in(call, 4, 0), NONE_AWAITED, NO_PEER);
}

/* (from, tag, comm, status) */
static void count_probed(struct calling *call)
{
    count_probe(call->into, call->operation, call->begin_ns, call->end_ns, call->comm,
                source(call));
}

/* (from, tag, comm, message, status) */
static void count_matching_probe(struct calling *call)
{
    count_probed(call);
    note_matched(call->into, handle_in(call, MESSAGE, 4, 0), call->comm, source(call));
}

/* (from, tag, comm, flag, message, status) */
static void count_matching_test(struct calling *call)
{
    count_test_of_message(call);
    if (integer_in(call, 4, 0))
        note_matched(call->into, handle_in(call, MESSAGE, 5, 0), call->comm,
                     source(call));
}

/* (buffer, count, type, message, status or request) */
static void count_received_match(struct calling *call)
{
    MPI_Request request =
        call->operation->request ? handle_in(call, REQUEST, call->operation->request, 0) : 0;
    count_matched(call->into, call->operation, call->begin_ns, call->end_ns, count_at(call, 2),
                  handle_of(call, DATATYPE, 3), call->operation->request ? &request : NULL);
}

static void count_payload(struct calling *call)
{
    struct payload payload = call->operation->payload;
    count_moved(call->into, call->operation, call->begin_ns, call->end_ns,
                payload_bytes(call, payload), type_of(call, payload));
}

/* `request` is where the new communicator is. */
static void count_creation(struct calling *call)
{
    count_plainly(call);
    comm_created(call->into, handle_in(call, COMM, call->operation->request, 0), call->comm);
}

/* (comm, name); Fortran's has a length, behind the code of errors, and no zero. */
static void count_naming(struct calling *call)
{
    char name[64];
    const char *given = address(call, 2);
    uint64_t length = is_fortran(call) ? (uint32_t)call->word[3] : strlen(given);
    if (length >= sizeof name)
        length = sizeof name - 1;
    memcpy(name, given, length);
    while (is_fortran(call) && length && name[length - 1] == ' ')
        length--;
    name[length] = '\0';
    comm_named(call->into, handle_of(call, COMM, 1), name);
}

#endif
