/* What the program itself calls: exchanges, groups and collectives that it reports, its regions and
 * its steps. Python finds these functions by name (hvd_ext/events.py). */
#ifndef HVPROF_REPORTED_H
#define HVPROF_REPORTED_H

#include "counting/sites.h"
#include "mpi/communicators.h"
#include "counting/counting_messages.h"
#include "counting/steps.h"

/* A call that others report: hvd_ext's and torch.distributed's. */
static void count_reported(struct recorder *into, struct kind kind, uint32_t sequence,
                           uint64_t message_bytes, uint64_t begin_ns, uint64_t time_ns,
                           uint64_t wait_ns, uint32_t queued_us)
{
    uint64_t key = cell_key(kind, message_bytes);
    list_this_thread();
    count(into, key, message_bytes, time_ns, wait_ns);
    if (kind.traffic == DATA && atomic_load_explicit(&ledger.on, memory_order_relaxed)) {
        lock(&ledger.lock);
        note(BACKGROUND, begin_ns, begin_ns + time_ns);
        unlock(&ledger.lock);
    }
    trace(into, (struct event){.begin_ns = begin_ns, .end_ns = begin_ns + time_ns,
                               .wait_ns = wait_ns, .key = key, .bytes = message_bytes,
                               .sequence = sequence, .thread = thread_id(), .peer = NO_PEER,
                               .queued_us = queued_us});
}

static uint64_t ns_of(double seconds)
{
    return seconds > 0 ? (uint64_t)(seconds * 1e9) : 0;
}

/* Called for each exchange of hvd_ext (hvd_ext/events.py); `start_s` and `ready_s` are on
 * CLOCK_MONOTONIC, 0 where they are unknown. */
EXPORT void hvprof_exchange(const char *operation, const char *algorithm, uint64_t message_bytes,
                            int size, double start_s, double wait_s, double transfer_s,
                            double ready_s)
{
    struct recorder *into = recorder;
    if (!into)
        return;
    bool has_ready = ready_s > 0 && ready_s <= start_s && start_s - ready_s < 1000;
    uint32_t queued_us = has_ready ? 1 + (uint32_t)((start_s - ready_s) * 1e6) : 0;
    pthread_mutex_lock(&knowing);
    int communicator = shared_entry(into, size);
    pthread_mutex_unlock(&knowing);
    struct kind kind = {.operation = name_id(into, operation, NAMES),
                        .algorithm = name_id(into, algorithm, NAMES), .communicator = communicator,
                        .traffic = data_or_tuning(), .source = SOURCE_HVD_EXT};
    uint64_t wait_ns = ns_of(wait_s);
    uint32_t sequence = ++known[communicator].sequence;
    count_reported(into, kind, sequence, message_bytes, ns_of(start_s), wait_ns + ns_of(transfer_s), wait_ns,
                   queued_us);
}

/* The number of a group of torch.distributed; `id` is the same on all its ranks, whose numbers in
 * the job are `ranks`. */
EXPORT int hvprof_group(uint64_t id, int size, int rank, const char *name, const int *ranks)
{
    struct recorder *into = recorder;
    int number = 0;
    if (!into)
        return number;
    struct recording *file = into->file;
    pthread_mutex_lock(&knowing);
    uint32_t end = file->communicators_end;
    for (uint32_t i = 1; i < end && !number; i++)
        number = file->communicators[i].id == id ? (int)i : 0;
    if (!number && end >= OWN_ENTRIES) {
        number = shared_entry(into, size);
    } else if (!number) {
        struct communicator entry = {.id = id, .size = size, .rank = rank};
        snprintf(entry.name, sizeof entry.name, "%s", name);
        write_ranks(ranks, size, entry.ranks, sizeof entry.ranks);
        file->communicators[end] = entry;
        file->communicators_end = end + 1;
        number = (int)end;
    }
    pthread_mutex_unlock(&knowing);
    return number;
}

static bool is_group(int number)
{
    return number > 0 && number < COMMUNICATORS;
}

/* This thread calls a collective of torch.distributed (hvd_ext/c10d/watch.py); returns its number
 * in the group. */
EXPORT uint32_t hvprof_collective_begins(const char *operation, int group)
{
    struct recorder *into = recorder;
    if (!into || !is_group(group))
        return 0;
    uint32_t number = ++known[group].sequence;
    if (into->current) {
        into->current->latest[group][number % LATEST] = (uint16_t)name_id(into, operation, NAMES);
        into->current->entered[group] = number;
    }
    return number;
}

/* It waits for an operation: for a collective by its number, or with number 0 for a message of the
 * rank `peer` of the job. */
EXPORT void hvprof_wait_begins(const char *operation, int group, uint32_t number,
                               uint64_t message_bytes, int peer)
{
    struct recorder *into = recorder;
    struct slot *slot = into && is_group(group) ? own_slot(into) : NULL;
    if (!slot)
        return;
    here.number = 0;
    here.call = (struct slot){.flags = IN_CALL | (number ? COLLECTIVE_CALL : 0),
                              .since_ns = clock_ns(CLOCK_MONOTONIC), .bytes = message_bytes,
                              .number = number,
                              .operation = (uint16_t)name_id(into, operation, NAMES),
                              .communicator = (uint16_t)group, .peer = peer};
    show_call(slot, NULL);
}

/* It has waited since `since_s`, 0 for now, for something that is known by its name (hvd_ext/
 * named_waits.py). `key` is that of an operation that ranks match by name in `group`, 0 for
 * none; `late` are ranks of the job that are known not to have come. */
EXPORT void hvprof_named_wait_begins(const char *operation, const char *about, int group,
                                     uint32_t key, uint64_t message_bytes, double since_s,
                                     int late_count, const int *late)
{
    struct recorder *into = recorder;
    struct slot *slot = into ? own_slot(into) : NULL;
    if (!slot)
        return;
    here.number = 0;
    here.call = (struct slot){.flags = IN_CALL | REPORTED | (key ? COLLECTIVE_CALL | BY_NAME : 0),
                              .since_ns = since_s > 0 ? ns_of(since_s) : clock_ns(CLOCK_MONOTONIC),
                              .bytes = message_bytes,
                              .number = key,
                              .operation = (uint16_t)name_id(into, operation, NAMES),
                              .communicator = (uint16_t)(is_group(group) ? group : 0),
                              .peer = NO_PEER};
    begin_writing(slot);
    strncpy(slot->about, about, sizeof slot->about - 1);
    slot->late_count = (uint32_t)late_count;
    for (int i = 0; i < late_count && i < LATE; i++)
        slot->late[i] = late[i];
    end_writing(slot);
    show_call(slot, NULL);
}

/* This rank has submitted an operation that ranks match by name. */
EXPORT void hvprof_submitted(uint32_t key)
{
    struct current *current = recorder ? recorder->current : NULL;
    if (current)
        current->submitted[atomic_fetch_add(&current->submitted_end, 1) % SUBMITTED] = key;
}

EXPORT void hvprof_wait_ends(void)
{
    struct recorder *into = recorder;
    if (into)
        leave_call(into, clock_ns(CLOCK_MONOTONIC), true);
}

/* An operation of torch.distributed is done; of a message the number is 0. */
EXPORT void hvprof_collective(const char *operation, const char *backend, int group,
                              uint32_t number, uint64_t message_bytes, double start_s,
                              double lasted_s)
{
    struct recorder *into = recorder;
    if (!into || !is_group(group))
        return;
    struct kind kind = {.operation = name_id(into, operation, NAMES),
                        .algorithm = name_id(into, backend, NAMES), .communicator = group,
                        .traffic = data_or_tuning(), .source = SOURCE_TORCH};
    uint64_t begin_ns = ns_of(start_s), time_ns = ns_of(lasted_s);
    note_first_and_last(begin_ns, begin_ns + time_ns);
    count_reported(into, kind, number, message_bytes, begin_ns, time_ns, 0, 0);
}

/* A collective or message that was reported was called at this line of Python. */
EXPORT void hvprof_called_at(const char *operation, const char *path, int line, double lasted_s)
{
    struct recorder *into = recorder;
    if (!into || !into->sites || line <= 0)
        return;
    int id = name_id(into, operation, NAMES);
    uint64_t key = (uint64_t)line ^ (uint64_t)id << 56;
    for (const char *letter = path; *letter; letter++)
        key = (key ^ (unsigned char)*letter) * 0x100000001b3u;
    struct source_line where = {.line = (uint32_t)line};
    strncpy(where.path, path, sizeof where.path - 1);
    add_to_site(add_site(into, key | 1, id, where, NO_EXTENSION), ns_of(lasted_s));
}

/* Called for each look-up in a cache of hvd_ext; one cache of a process is counted. What the MPI
 * library itself exposes in the end replaces it. */
EXPORT void hvprof_cache(const char *name, int hit)
{
    struct recorder *into = recorder;
    if (!into)
        return;
    struct recording *file = into->file;
    pthread_mutex_lock(&into->changing);
    if (!file->cache_source[0])
        snprintf(file->cache_source, sizeof file->cache_source, "%s", name);
    if (!strncmp(file->cache_source, name, sizeof file->cache_source - 1))
        ++*(hit ? &file->cache_hits : &file->cache_misses);
    pthread_mutex_unlock(&into->changing);
}

/* The file of this rank, which lasts; NULL in a process that is not recorded. */
EXPORT const char *hvprof_rank_file(void)
{
    struct recorder *into = recorder;
    return into ? into->path : NULL;
}

/* Exchanges between them are measurements, not the program's. */
EXPORT void hvprof_tuning_begin(void)
{
    tuning++;
}

EXPORT void hvprof_tuning_end(void)
{
    tuning--;
}

/* Regions and steps of the program (annotate.py). `kind` is an enum region_kind. */
EXPORT void hvprof_region_begin(const char *name, int kind)
{
    struct recorder *into = recorder;
    uint64_t now_ns = clock_ns(CLOCK_MONOTONIC);
    enter_region(into, name, kind, now_ns);
    show_region(into, name, kind, now_ns);
}

EXPORT void hvprof_region_end(void)
{
    struct recorder *into = recorder;
    uint64_t now_ns = clock_ns(CLOCK_MONOTONIC);
    leave_region(into, now_ns);
    bool within = regions.depth > 0 && regions.depth <= DEPTH;
    show_region(into, within ? regions.at[regions.depth - 1].name : "", innermost_kind(), now_ns);
}

static _Atomic bool program_marks_steps;

EXPORT void hvprof_step(void)
{
    struct recorder *into = recorder;
    atomic_store_explicit(&program_marks_steps, true, memory_order_relaxed);
    if (into)
        mark_step(into, clock_ns(CLOCK_MONOTONIC));
}

/* A step as far as can be seen from outside, which counts where the program marks none. */
EXPORT void hvprof_step_ended(void)
{
    struct recorder *into = recorder;
    if (into && !atomic_load_explicit(&program_marks_steps, memory_order_relaxed))
        mark_step(into, clock_ns(CLOCK_MONOTONIC));
}

#endif
