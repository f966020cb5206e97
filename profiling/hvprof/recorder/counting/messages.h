/* Messages by partner: which ranks this one exchanges them with, and how long it is blocked on
 * each.
 *
 * A blocking call names its partner, and a receive from any source learns it from its status.
 * A wait has requests only: where each was started, its partner is noted under its handle. A
 * wait for several is blocked on those that it receives from, or on those that it sends to where
 * it receives nothing; which of them was last is not known, so each gets an equal part.
 */
#ifndef HVPROF_MESSAGES_H
#define HVPROF_MESSAGES_H

#include "cells.h"
#include "../mpi/communicators.h"

enum direction { NO_DIRECTION, TO, FROM };
/* A library's requests lie at multiples of ALIGNED bytes, or are numbered. */
enum { STARTED = 65536, ALIKE = 4, ALIGNED = 64, AWAITED = 64 };
/* Stands for a request where a thread is noting one. */
enum { BEING_NOTED = 1 };

/* What a request is: none of a message where the direction is NO_DIRECTION. */
struct message {
    enum direction direction;
    int communicator; /* its entry */
    int peer;         /* of that communicator; negative: any, or none */
    uint64_t bytes;
};

/* The requests that were noted last, some for each hash of their handles. Where more share one, or
 * a thread reads while another writes, a wait has no partner at worst. */
static struct started {
    _Atomic uint64_t handle, what, bytes; /* what: direction, and communicator and peer plus 1 */
} started[STARTED / ALIKE][ALIKE];

static struct started *alike_to(uint64_t handle)
{
    return started[(unsigned)(handle * 0x9e3779b97f4a7c15u >> 32) % (STARTED / ALIKE)];
}

/* Which of those with the same hash has a handle (0: is empty), or NULL. */
static struct started *with_handle(struct started *alike, uint64_t handle)
{
    for (int i = 0; i < ALIKE; i++)
        if (alike[i].handle == handle)
            return &alike[i];
    return NULL;
}

static void note_started(MPI_Request request, struct message message)
{
    uint64_t handle = (uint64_t)request;
    uint64_t peer = message.peer < 0 ? 0 : (uint64_t)message.peer + 1;
    struct started *alike = alike_to(handle), *place = with_handle(alike, handle);
    if (!place)
        place = with_handle(alike, 0);
    if (!place)
        place = &alike[handle / ALIGNED % ALIKE];
    uint64_t before = place->handle;
    if (before == BEING_NOTED ||
        !atomic_compare_exchange_strong(&place->handle, &before, BEING_NOTED))
        return;
    place->bytes = message.bytes;
    place->what = (uint64_t)message.direction | (uint64_t)message.communicator << 8 | peer << 16;
    place->handle = handle;
}

static struct message message_of(MPI_Request request)
{
    uint64_t handle = (uint64_t)request;
    struct message none = {NO_DIRECTION, 0, NO_PEER, 0};
    struct started *place = handle ? with_handle(alike_to(handle), handle) : NULL;
    if (!place)
        return none;
    uint64_t what = place->what, bytes = place->bytes;
    if (place->handle != handle)
        return none;
    return (struct message){(enum direction)(what & 0xff), (int)(what >> 8 & 0xff),
                            (int)(what >> 16) - 1, bytes};
}

/* Adds to the cell of a partner: a sum of messages, of bytes and of time blocked. Returns how many
 * messages there are now, 0 where that is not known. */
static uint64_t add_to_partner(struct recorder *into, enum direction direction, int partner,
                           uint64_t messages, uint64_t bytes, uint64_t blocked_ns)
{
    static const char *const NAMES_OF[] = {"", "to", "from"};
    static _Atomic int names[3];
    static _Atomic uint32_t partners;
    if (partner < 0 || direction == NO_DIRECTION)
        return 0;
    if (!names[direction])
        names[direction] = name_id(into, NAMES_OF[direction], NAMES);
    if (partner > OTHER_PARTNERS)
        partner = OTHER_PARTNERS;
    struct kind kind = {.operation = names[direction], .algorithm = NATIVE, .traffic = PARTNER,
                        .source = SOURCE_MPI, .partner = partner};
    uint64_t key = cell_key(kind, 0);
    if (partners >= PARTNERS && !has_cell(into, key)) {
        kind.partner = OTHER_PARTNERS;
        key = cell_key(kind, 0);
    }
    struct cell *cell = find_cell(into, key);
    if (!cell)
        return 0;
    lock(&cell->lock);
    partners += !cell->calls && !cell->time_ns;
    uint64_t number = cell->calls += messages;
    cell->bytes += bytes;
    cell->time_ns += blocked_ns;
    unlock(&cell->lock);
    return kind.partner == OTHER_PARTNERS ? 0 : number;
}

/* Remember the message, so that hvprof hang can show what was sent with another tag. */
static void note_sent(struct recorder *into, int to, int tag, int communicator, uint64_t bytes,
                      uint64_t number)
{
    struct current *current = into->current;
    if (!current || to < 0 || !number)
        return;
    uint32_t place = atomic_fetch_add_explicit(&current->sent_end, 1, memory_order_relaxed);
    current->sent[place % SENT] = (struct sent){.bytes = bytes, .to = to, .tag = (uint32_t)tag + 1,
                                                .number = (uint32_t)number,
                                                .communicator = (uint32_t)communicator};
}

/* The requests that this thread waits for, as they were before the wait took them away. */
static _Thread_local struct {
    int all, count; /* the first of them are known */
    MPI_Request requests[AWAITED];
    struct message of[AWAITED];
} awaited;

static void note_awaited(int count, const MPI_Request *requests)
{
    awaited.all = count;
    awaited.count = count < AWAITED ? count : AWAITED;
    for (int i = 0; i < awaited.count; i++) {
        awaited.requests[i] = requests[i];
        awaited.of[i] = message_of(requests[i]);
    }
}

/* The request has ended: MPI may reuse its handle for one that is not a message. */
static void forget_started(MPI_Request request)
{
    uint64_t handle = (uint64_t)request;
    struct started *place = with_handle(alike_to(handle), handle);
    if (place)
        atomic_compare_exchange_strong(&place->handle, &handle, 0);
}

/* Requests that a wait found to have ended, and their payload. */
struct ended {
    uint64_t requests, bytes;
};

/* Which of the awaited requests a wait completed: the index of one, all, or none of them. */
enum { ALL_AWAITED = -1, NONE_AWAITED = -2 };

/* Adds an awaited request, unless it is null or was not started by a call that is counted. */
static void add_ended(struct ended *to, int index)
{
    if (index < 0 || index >= awaited.count || !awaited.of[index].communicator)
        return;
    to->requests++;
    to->bytes += awaited.of[index].bytes;
}

/* Requests past the known ones count as these do. */
static struct ended ended_at(int index)
{
    struct ended found = {0};
    if (index != ALL_AWAITED) {
        add_ended(&found, index);
        return found;
    }
    for (int i = 0; i < awaited.count; i++)
        add_ended(&found, i);
    if (awaited.all > awaited.count) {
        found.requests = found.requests * (uint64_t)awaited.all / (uint64_t)awaited.count;
        found.bytes = found.bytes / (uint64_t)awaited.count * (uint64_t)awaited.all;
    }
    return found;
}

/* What a wait of this thread was blocked on. */
static void blame_awaited(struct recorder *into, int index, int source, uint64_t blocked_ns)
{
    int first = index < 0 ? 0 : index, end = index < 0 ? awaited.count : index + 1, parts = 0;
    enum direction direction = TO;
    if (end > awaited.count)
        return;
    struct message *only = end == first + 1 ? &awaited.of[first] : NULL;
    if (only && only->direction == FROM && only->peer < 0) { /* not counted when it began */
        only->peer = source;
        add_to_partner(into, FROM, world_rank(only->communicator, source), 1, only->bytes, 0);
    }
    for (int i = first; i < end; i++)
        if (awaited.of[i].direction == FROM)
            direction = FROM;
    for (int i = first; i < end; i++)
        parts += awaited.of[i].direction == direction && awaited.of[i].peer >= 0;
    for (int i = first; i < end; i++)
        if (awaited.of[i].direction == direction && awaited.of[i].peer >= 0)
            add_to_partner(into, direction,
                           world_rank(awaited.of[i].communicator, awaited.of[i].peer), 0, 0,
                           blocked_ns / (uint64_t)parts);
}

#endif
