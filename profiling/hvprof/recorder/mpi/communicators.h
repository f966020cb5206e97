/* Which communicator a call is on, under an id that all its ranks agree on.
 *
 * Nothing is sent for that. Ranks create communicators out of a parent in one order, so
 * the parent's id, the world ranks of the members and how many of the same members came
 * before make an id that is the same on each of them, and in the next run.
 */
#ifndef HVPROF_COMMUNICATORS_H
#define HVPROF_COMMUNICATORS_H

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "library.h"
#include "../recorder.h"

/* Past this many, communicators of the same size share an entry without an id. */
enum { OWN_ENTRIES = COMMUNICATORS - 24, COMM_SLOTS = 256 };

static struct {
    MPI_Comm handle;
    uint64_t parent, group;
    int *world_ranks; /* of whom its ranks are */
    int count;        /* how many are known */
    bool live, transport;
    _Atomic uint32_t sequence;
} known[COMMUNICATORS];

/* Where a handle was found last. An entry of an earlier generation is stale: when a
 * communicator is freed, its handle may be given to another one. */
static struct {
    _Atomic uint64_t handle, found; /* generation, and entry in the low byte */
} recent_comms[COMM_SLOTS];
static _Atomic uint64_t comm_generation = 1;
static pthread_mutex_t knowing = PTHREAD_MUTEX_INITIALIZER;

static uint64_t mix(uint64_t hash, uint64_t value)
{
    hash = (hash ^ value) * 0x9e3779b97f4a7c15u;
    return hash ^ hash >> 32;
}

/* "0-7", "0-6:2" or "0,3,4,..." of the world ranks. */
static void write_ranks(const int *ranks, int count, char *text, size_t room)
{
    int stride = count > 1 ? ranks[1] - ranks[0] : 1;
    bool even = stride > 0;
    for (int i = 1; even && i < count; i++)
        even = ranks[i] - ranks[i - 1] == stride;
    if (even && count > 2 && stride > 1) {
        snprintf(text, room, "%d-%d:%d", ranks[0], ranks[count - 1], stride);
        return;
    }
    if (even && count > 1 && stride == 1) {
        snprintf(text, room, "%d-%d", ranks[0], ranks[count - 1]);
        return;
    }
    size_t used = 0;
    for (int i = 0; i < count; i++) {
        char one[16];
        int length = snprintf(one, sizeof one, "%s%d", i ? "," : "", ranks[i]);
        if (used + (size_t)length + sizeof ",..." > room) {
            strcpy(text + used, ",...");
            return;
        }
        strcpy(text + used, one);
        used += (size_t)length;
    }
}

/* A hash of the world ranks in a group that MPI wrote, which is freed; they are written to `text` and kept in
 * `world_ranks` too. Returns how many in `known_ranks`. */
static uint64_t hash_group(handle *written, char *text, size_t room, int **world_ranks,
                           int *known_ranks)
{
    MPI_Group group = handle_at(written, 0);
    handle world = mpi.session_world;
    int count = 0;
    uint64_t hash = 0;
    mpi.group_size(group, &count);
    int *ranks = malloc((size_t)(count + 1) * sizeof *ranks);
    int *places = malloc((size_t)(count + 1) * sizeof *places);
    if (ranks && places) {
        for (int i = 0; i < count; i++)
            places[i] = i;
        if (!mpi.session_world)
            mpi.comm_group(abi.world, &world);
        mpi.group_translate_ranks(group, count, places, handle_at(&world, 0), ranks);
        if (!mpi.session_world)
            mpi.group_free(&world);
        for (int i = 0; i < count; i++)
            hash = mix(hash, (uint64_t)ranks[i] + 1);
        write_ranks(ranks, count, text, room);
    }
    free(places);
    free(*world_ranks);
    *world_ranks = ranks;
    *known_ranks = ranks && places ? count : 0;
    mpi.group_free(written);
    return hash;
}

/* The entry that communicators of one size share; for those past counting, and for the
 * reductions of hvd_ext, which names no communicator. */
static int shared_entry(struct recorder *into, int size)
{
    struct recording *file = into->file;
    uint32_t end = file->communicators_end;
    for (uint32_t i = 1; i < end; i++)
        if (file->communicators[i].id == 0 && file->communicators[i].size == size)
            return (int)i;
    if (end == COMMUNICATORS)
        return 0;
    file->communicators[end].size = size;
    file->communicators_end = end + 1;
    return (int)end;
}

static int enter_comm(struct recorder *into, MPI_Comm comm, uint64_t parent)
{
    struct recording *file = into->file;
    struct communicator entry = {0};
    handle group = 0;
    int inter = 0, *world_ranks = NULL, count = 0;
    uint32_t end = file->communicators_end, same = 0;
    entry.size = ranks_of(comm);
    if (end >= OWN_ENTRIES)
        return shared_entry(into, entry.size);
    mpi.comm_rank(comm, &entry.rank);
    mpi.comm_group(comm, &group);
    uint64_t hash = hash_group(&group, entry.ranks, sizeof entry.ranks, &world_ranks, &count);
    mpi.comm_test_inter(comm, &inter);
    if (inter) {
        char ignored[sizeof entry.ranks];
        mpi.comm_remote_group(comm, &group);
        /* The same from both sides. */
        hash += hash_group(&group, ignored, sizeof ignored, &world_ranks, &count);
    }
    for (uint32_t i = 1; i < end; i++)
        same += known[i].parent == parent && known[i].group == hash;
    entry.id = mix(mix(mix(1, parent), hash), same) | 1;
    strcpy(entry.name, comm == abi.world  ? "MPI_COMM_WORLD"
                       : comm == abi.self ? "MPI_COMM_SELF"
                                          : "");
    file->communicators[end] = entry;
    known[end].parent = parent;
    known[end].group = hash;
    known[end].world_ranks = world_ranks;
    known[end].count = count;
    known[end].handle = comm;
    known[end].live = true;
    file->communicators_end = end + 1;
    return (int)end;
}

static int look_up_comm(struct recorder *into, MPI_Comm comm, uint64_t parent)
{
    int entry = 0;
    pthread_mutex_lock(&knowing);
    for (uint32_t i = 1; i < into->file->communicators_end && !entry; i++)
        if (known[i].live && known[i].handle == comm)
            entry = (int)i;
    if (!entry)
        entry = enter_comm(into, comm, parent);
    pthread_mutex_unlock(&knowing);
    return entry;
}

static unsigned comm_slot(uint64_t handle)
{
    return (unsigned)((handle ^ handle >> 8) % COMM_SLOTS);
}

/* The entry of a communicator, which is made at its first call if its creation was not seen. */
static int comm_entry(struct recorder *into, MPI_Comm comm)
{
    uint64_t handle = (uint64_t)comm, generation = comm_generation;
    unsigned slot = comm_slot(handle);
    uint64_t found = atomic_load_explicit(&recent_comms[slot].found, memory_order_acquire);
    if (atomic_load_explicit(&recent_comms[slot].handle, memory_order_acquire) == handle &&
        found >> 8 == generation && recent_comms[slot].found == found)
        return (int)(found & 0xff);
    int entry = look_up_comm(into, comm, 0);
    /* In this order a reader that comes between sees a handle without an entry. */
    pthread_mutex_lock(&knowing);
    recent_comms[slot].found = 0;
    recent_comms[slot].handle = handle;
    recent_comms[slot].found = generation << 8 | (uint64_t)entry;
    pthread_mutex_unlock(&knowing);
    return entry;
}

/* The world rank of a communicator's rank (of the other group, between two groups); NO_PEER where
 * there is none or it is not known. The rank may be anything: a canceled receive has none. */
static int world_rank(int entry, int rank)
{
    return rank < 0 || rank >= known[entry].count ? NO_PEER : known[entry].world_ranks[rank];
}

/* The entry of a communicator that was seen before, or 0: MPI is asked nothing. */
static int seen_comm(struct recorder *into, MPI_Comm comm)
{
    uint64_t handle = (uint64_t)comm, generation = comm_generation;
    unsigned slot = comm_slot(handle);
    uint64_t found = atomic_load_explicit(&recent_comms[slot].found, memory_order_acquire);
    if (atomic_load_explicit(&recent_comms[slot].handle, memory_order_acquire) == handle &&
        found >> 8 == generation && recent_comms[slot].found == found)
        return (int)(found & 0xff);
    int entry = 0;
    pthread_mutex_lock(&knowing);
    for (uint32_t i = 1; i < into->file->communicators_end && !entry; i++)
        if (known[i].live && known[i].handle == comm)
            entry = (int)i;
    pthread_mutex_unlock(&knowing);
    return entry;
}

static void forget_comm(MPI_Comm comm)
{
    pthread_mutex_lock(&knowing);
    for (int i = 1; i < COMMUNICATORS; i++)
        if (known[i].live && known[i].handle == comm)
            known[i].live = false;
    comm_generation++;
    pthread_mutex_unlock(&knowing);
}

static void comm_created(struct recorder *into, MPI_Comm made, MPI_Comm parent)
{
    if (made == abi.no_comm)
        return;
    forget_comm(made);
    look_up_comm(into, made, into->file->communicators[comm_entry(into, parent)].id);
}

/* Communicators of hvd_ext's reductions bear its name. */
static void comm_named(struct recorder *into, MPI_Comm comm, const char *name)
{
    int entry = comm_entry(into, comm);
    if (!into->file->communicators[entry].id)
        return;
    known[entry].transport = !strncmp(name, "hvd_ext", 7);
    snprintf(into->file->communicators[entry].name, sizeof into->file->communicators[entry].name,
             "%s", name);
}

#endif
