/* What each thread does now, in the file of the rank's current calls: hvprof reads it while the
 * job runs, and where it stands still.
 *
 * A thread has a slot there, and writes it as it enters a call and as it leaves. Nothing is asked
 * of MPI on entry, and no array of the program is read: the arguments may be invalid, and it is
 * MPI's call that says so. What cannot be known so is left out.
 */
#ifndef HVPROF_CURRENT_H
#define HVPROF_CURRENT_H

#include <pthread.h>
#include <string.h>
#include <unistd.h>

#include "mpi/communicators.h"
#include "mpi/datatypes.h"
#include "operation.h"
#include "counting/trace.h"

/* Non-blocking calls of a thread that it may yet wait for. */
enum { PENDING = 64, MOST_REQUESTS = 64 };

struct entering {
    MPI_Datatype type;
    uint64_t bytes; /* 0: not known yet */
    int peer;
    bool collective;
    void *caller;
    uint32_t tag; /* plus 1; 0: none */
    bool is_message; /* which may be from any rank: no rank at all may have the same number */
};

static _Thread_local struct {
    struct slot *slot; /* NULL: none */
    bool asked;
    int communicator, ranks;
    uint32_t number; /* that a collective took; given back if it fails */
    bool stays; /* its slot shows a loop of tests, and is left alone: readers need it to be still */
    struct slot call;
    struct pending {
        uint64_t request;
        uint64_t bytes;
        uint32_t number;
        int32_t peer;
        uint16_t operation, communicator;
        uint32_t flags, tag;
    } pending[PENDING];
} here;

static pthread_key_t slot_key;
static bool slot_key_is_made;


static void begin_writing(struct slot *slot)
{
    uint64_t changes = atomic_load_explicit(&slot->changes, memory_order_relaxed);
    atomic_store_explicit(&slot->changes, changes + 1, memory_order_relaxed);
    atomic_thread_fence(memory_order_release);
}

static void end_writing(struct slot *slot)
{
    uint64_t changes = atomic_load_explicit(&slot->changes, memory_order_relaxed);
    atomic_store_explicit(&slot->changes, changes + 1, memory_order_release);
}

/* With no call and no region, for the next thread. */
static void free_slot(void *given)
{
    struct slot *slot = given;
    begin_writing(slot);
    memset(&slot->flags, 0, sizeof *slot - offsetof(struct slot, flags));
    end_writing(slot);
    atomic_store(&slot->thread, 0);
}

static void prepare_slots(void)
{
    slot_key_is_made = !pthread_key_create(&slot_key, free_slot);
}

static struct slot *own_slot(struct recorder *into)
{
    if (here.asked || !into->current)
        return here.slot;
    here.asked = true;
    pthread_mutex_lock(&into->changing);
    for (int i = 0; i < SLOTS && !here.slot; i++)
        if (!atomic_load(&into->current->slots[i].thread))
            here.slot = &into->current->slots[i];
    if (here.slot)
        atomic_store(&here.slot->thread, thread_id());
    pthread_mutex_unlock(&into->changing);
    if (here.slot && slot_key_is_made)
        pthread_setspecific(slot_key, here.slot);
    return here.slot;
}

/* That of the measurement of the recorder's own cost is thrown away. */
static void forget_slot(void)
{
    here.slot = NULL;
    here.asked = false;
    if (slot_key_is_made)
        pthread_setspecific(slot_key, NULL);
}

static void write_call(struct slot *slot, const struct slot *call)
{
    begin_writing(slot);
    slot->flags = call->flags;
    slot->since_ns = call->since_ns;
    slot->bytes = call->bytes;
    slot->number = call->number;
    slot->operation = call->operation;
    slot->communicator = call->communicator;
    slot->started = call->started;
    slot->requests = call->requests;
    slot->peer = call->peer;
    slot->tag = call->tag;
    end_writing(slot);
}

/* `before`: what the slot shows, if that is to stay. */
static void show_call(struct slot *slot, const struct slot *before)
{
    const struct slot *call = &here.call;
    here.stays = before && before->since_ns == call->since_ns && before->peer == call->peer &&
                 before->operation == call->operation && before->started == call->started &&
                 before->tag == call->tag && before->communicator == call->communicator;
    if (slot && !here.stays)
        write_call(slot, call);
}

/* The communicator of the call that begins; 0 where none of its calls has succeeded yet, but for
 * those that are always there. */
static void enter_communicator(struct recorder *into, MPI_Comm comm)
{
    here.communicator = comm == abi.world || comm == abi.self ? comm_entry(into, comm)
                                                               : seen_comm(into, comm);
    here.ranks = here.communicator ? into->file->communicators[here.communicator].size : 0;
}

/* A size as the arguments give it before MPI has accepted them. */
static uint64_t bytes_before(int64_t count, MPI_Datatype type)
{
    uint64_t bytes;
    bool control;
    return count > 0 && known_type(type, &bytes, &control) ? (uint64_t)count * bytes : 0;
}

static int32_t peer_to_show(int peer, bool may_be_any)
{
    if (may_be_any && peer == abi.any_source)
        return ANY_PEER;
    return world_rank(here.communicator, peer);
}

static bool is_coordination(const struct entering *call)
{
    uint64_t bytes;
    bool control;
    return known_type(call->type, &bytes, &control) && control && called_by_horovod(call->caller);
}

static void enter(struct recorder *into, struct operation *operation, uint64_t begin_ns,
                  struct entering call)
{
    struct slot *slot = own_slot(into);
    struct slot before;
    if (here.stays)
        before = here.call;
    here.number = 0;
    if (call.collective && here.communicator)
        here.number = ++known[here.communicator].sequence;
    if (here.number && into->current) {
        into->current->latest[here.communicator][here.number % LATEST] =
            (uint16_t)id_of(into, operation);
        into->current->entered[here.communicator] = here.number;
    }
    here.call.flags = IN_CALL | (call.collective ? COLLECTIVE_CALL : 0) |
                      (is_coordination(&call) ? COORDINATION : 0);
    here.call.since_ns = begin_ns;
    here.call.bytes = call.bytes;
    here.call.number = here.number;
    here.call.operation = (uint16_t)id_of(into, operation);
    here.call.communicator = (uint16_t)here.communicator;
    here.call.started = here.call.requests = 0;
    here.call.peer = peer_to_show(call.peer, call.is_message);
    here.call.tag = call.tag;
    show_call(slot, here.stays ? &before : NULL);
}

/* A call that all ranks of a communicator make together, but which is no collective of those that
 * are counted: it stands where the next of these will. */
static void enter_uncounted(struct recorder *into, struct operation *operation, uint64_t begin_ns,
                            MPI_Comm comm)
{
    enter_communicator(into, comm);
    enter(into, operation, begin_ns,
          (struct entering){.type = abi.byte, .peer = NO_PEER, .caller = CALLER});
    here.call.flags |= COLLECTIVE_CALL;
    here.call.number = here.communicator ? known[here.communicator].sequence + 1 : 0;
    if (here.slot)
        write_call(here.slot, &here.call);
}

/* A call of which the arguments say nothing here. */
static void enter_plain(struct recorder *into, struct operation *operation, uint64_t begin_ns)
{
    here.communicator = here.ranks = 0;
    enter(into, operation, begin_ns,
          (struct entering){.type = abi.no_type, .peer = NO_PEER, .caller = NULL});
}

static void leave_call(struct recorder *into, uint64_t end_ns, bool succeeded)
{
    if (!succeeded && here.number) {
        known[here.communicator].sequence--;
        if (into->current)
            into->current->entered[here.communicator]--;
        here.number = 0;
    }
    struct slot *slot = here.slot;
    if (!slot || (here.stays && succeeded))
        return;
    here.stays = false;
    begin_writing(slot);
    slot->flags &= ~(uint32_t)IN_CALL;
    slot->since_ns = end_ns;
    end_writing(slot);
}

/* The call that has just returned is made again and again since then: it is one that lasts. */
static void stay_in_call(uint64_t since_ns)
{
    here.call.since_ns = since_ns;
    if (here.slot && !here.stays)
        write_call(here.slot, &here.call);
    here.stays = true;
}

/* A test has succeeded. */
static void end_of_stay(struct recorder *into, uint64_t end_ns)
{
    bool stayed = here.stays;
    here.stays = false;
    if (stayed)
        leave_call(into, end_ns, true);
}

/* The number of the collective that has just succeeded. */
static uint32_t collective_number(int communicator)
{
    return here.number && here.communicator == communicator ? here.number
                                                            : ++known[communicator].sequence;
}

/* --- Non-blocking calls, and what waits for them ----------------------------------------- */

static struct pending *pending_of(MPI_Request request)
{
    uint64_t handle = (uint64_t)request;
    return &here.pending[(handle ^ handle >> 7 ^ handle >> 13) % PENDING];
}

/* The call that has just succeeded made this request. */
static void remember(MPI_Request request)
{
    *pending_of(request) = (struct pending){
        .request = (uint64_t)request, .bytes = here.call.bytes, .number = here.call.number,
        .peer = here.call.peer, .operation = here.call.operation,
        .communicator = here.call.communicator, .flags = here.call.flags,
        .tag = here.call.tag};
}

/* The request has ended: its handle may be another's next. */
static void forget_pending(MPI_Request request)
{
    struct pending *one = pending_of(request);
    if (one->request == (uint64_t)request)
        one->operation = 0;
}

/* A wait. It is shown as one for the first request that receives or is a collective, as these
 * depend on other ranks most, or else for the first that is known. */
static void enter_wait(struct recorder *into, struct operation *operation, uint64_t begin_ns,
                       int count, const MPI_Request *requests)
{
    struct slot *slot = own_slot(into);
    const char(*names)[NAME_BYTES] = (const char(*)[NAME_BYTES])into->file->names;
    struct pending found = {0};
    struct slot before;
    if (here.stays)
        before = here.call;
    bool sends = false;
    here.number = 0;
    for (int i = 0; requests && i < count && i < MOST_REQUESTS; i++) {
        struct pending *one = pending_of(requests[i]);
        if (!one->operation || one->request != (uint64_t)requests[i])
            continue;
        if (!found.operation || sends) {
            found = *one;
            sends = !strcmp(names[one->operation], "isend");
        }
    }
    here.call = (struct slot){.flags = IN_CALL | found.flags, .since_ns = begin_ns,
                              .bytes = found.bytes, .number = found.number,
                              .operation = (uint16_t)id_of(into, operation),
                              .communicator = found.communicator, .started = found.operation,
                              .requests = (uint16_t)(count < 0 ? 0 : count > 65535 ? 65535 : count),
                              .peer = found.operation ? found.peer : NO_PEER,
                              .tag = found.tag};
    show_call(slot, here.stays ? &before : NULL);
}

/* --- Regions ------------------------------------------------------------------------------ */

static void show_region(struct recorder *into, const char *name, int kind, uint64_t since_ns)
{
    struct slot *slot = into ? own_slot(into) : NULL;
    if (!slot)
        return;
    begin_writing(slot);
    memset(slot->region, 0, sizeof slot->region);
    strncpy(slot->region, name, sizeof slot->region - 1);
    slot->region_kind = (uint32_t)kind;
    slot->region_since_ns = since_ns;
    end_writing(slot);
}

#endif
