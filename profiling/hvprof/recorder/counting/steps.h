/* Where the time of a step goes, on the thread that marks steps.
 *
 * While a step lasts, intervals are noted: what regions the thread was in (the innermost
 * counts), when it was blocked on communication, and when other threads communicated. At
 * its end they are united and laid over each other: so nothing is counted twice.
 */
#ifndef HVPROF_STEPS_H
#define HVPROF_STEPS_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cells.h"
#include "../core_trial.h"
#include "../kernel.h"
#include "../recorder.h"
#include "trace.h"

enum region_kind { COMPUTE, COMMUNICATION, IO, UNKIND, KINDS };
static const char *const KIND_NAMES[KINDS] = {"compute", "communication", "io", "other"};

/* Times of computing, exposed communication and I/O on the thread; and of other threads'
 * communication. */
enum noted { COMPUTING = COMPUTE, EXPOSED = COMMUNICATION, READING = IO, BACKGROUND, NOTED };
enum { INTERVALS = 4096, DEPTH = 32 };

struct intervals {
    unsigned end;
    struct interval {
        uint64_t begin, end;
    } at[INTERVALS];
};

static struct {
    _Atomic bool on;
    _Atomic uint32_t lock;
    _Atomic uint64_t thread; /* that marks steps; read without the lock */
    bool in_step;
    uint64_t step_begin_ns, part_begin_ns;
    struct intervals noted[NOTED];
    /* Counters of the thread alone. */
    int schedstat;
    struct usage step_began;
    uint64_t queue_read_ns, queued_blocked_ns;
} ledger = {.schedstat = -1};

/* The regions that a thread is in. */
static _Thread_local struct {
    int depth;
    int communicating; /* how many of them are of kind communication */
    struct {
        char name[NAME_BYTES];
        int kind;
        uint64_t begin_ns; /* 0: nothing was recorded then */
    } at[DEPTH];
} regions;

/* For how long the thread handed gradients over to an exchange, since its step began:
 * hvd_ext/events.py adds to it. A part of computing. */
EXPORT uint64_t hvprof_handed_over_ns;

static int by_begin(const void *a, const void *b)
{
    const struct interval *first = a, *second = b;
    return (first->begin > second->begin) - (first->begin < second->begin);
}

/* Sorted, and those become one that touch or are at most `gap_ns` apart. */
static void unite(struct intervals *set, uint64_t gap_ns)
{
    unsigned kept = 0;
    qsort(set->at, set->end, sizeof *set->at, by_begin);
    for (unsigned i = 0; i < set->end; i++) {
        struct interval next = set->at[i];
        if (kept && next.begin <= set->at[kept - 1].end + gap_ns) {
            if (next.end > set->at[kept - 1].end)
                set->at[kept - 1].end = next.end;
        } else {
            set->at[kept++] = next;
        }
    }
    set->end = kept;
}

/* A step of very many calls: the smallest gaps between them are closed. */
static void make_room(struct intervals *set)
{
    unite(set, 0);
    for (uint64_t gap_ns = 250; set->end > INTERVALS / 2; gap_ns *= 2)
        unite(set, gap_ns);
}

/* With the ledger's lock held. */
static void note(enum noted which, uint64_t begin_ns, uint64_t end_ns)
{
    struct intervals *set = &ledger.noted[which];
    if (begin_ns < ledger.step_begin_ns)
        begin_ns = ledger.step_begin_ns;
    if (!ledger.in_step || begin_ns >= end_ns)
        return;
    if (set->end == INTERVALS)
        make_room(set);
    set->at[set->end++] = (struct interval){begin_ns, end_ns};
}

static bool on_ledgers_thread(void)
{
    return atomic_load_explicit(&ledger.thread, memory_order_relaxed) == thread_number();
}

static void note_call(uint64_t begin_ns, uint64_t end_ns, enum traffic traffic)
{
    note_first_and_last(begin_ns, end_ns);
    try_core(end_ns);
    if (!atomic_load_explicit(&ledger.on, memory_order_relaxed))
        return;
    bool exposed = on_ledgers_thread();
    /* Horovod's thread waits in its coordination all the time. */
    if (!exposed && traffic != DATA)
        return;
    lock(&ledger.lock);
    note(exposed ? EXPOSED : BACKGROUND, begin_ns, end_ns);
    unlock(&ledger.lock);
}

static uint64_t length(const struct intervals *set)
{
    uint64_t sum = 0;
    for (unsigned i = 0; i < set->end; i++)
        sum += set->at[i].end - set->at[i].begin;
    return sum;
}

/* Length of the intersection of two united sets. */
static uint64_t in_both(const struct intervals *a, const struct intervals *b)
{
    uint64_t sum = 0;
    for (unsigned i = 0, j = 0; i < a->end && j < b->end;) {
        uint64_t begin = a->at[i].begin > b->at[j].begin ? a->at[i].begin : b->at[j].begin;
        uint64_t end = a->at[i].end < b->at[j].end ? a->at[i].end : b->at[j].end;
        sum += end > begin ? end - begin : 0;
        if (a->at[i].end < b->at[j].end)
            i++;
        else
            j++;
    }
    return sum;
}

static int innermost_kind(void)
{
    return regions.depth > 0 && regions.depth <= DEPTH ? regions.at[regions.depth - 1].kind
                                                       : UNKIND;
}

/* In a region in which the thread computes nothing. */
static bool is_blocked(void)
{
    return innermost_kind() == COMMUNICATION || innermost_kind() == IO;
}

/* Time the thread was queued since the last call: while it was blocked, or not. */
static void note_queue(uint64_t queue_ns, bool blocked)
{
    if (blocked)
        ledger.queued_blocked_ns += queue_ns - ledger.queue_read_ns;
    ledger.queue_read_ns = queue_ns;
}

/* End the part of the innermost region that ran until now. */
static void end_part(uint64_t now_ns)
{
    int kind = innermost_kind();
    if (kind != UNKIND)
        note((enum noted)kind, ledger.part_begin_ns, now_ns);
    ledger.part_begin_ns = now_ns;
}

/* Kernel counters since the step began. */
static void add_usage(struct step *step, const struct usage *now)
{
    const struct usage *began = &ledger.step_began;
    step->cpu_ns = now->cpu_ns - began->cpu_ns;
    step->queued_blocked_ns = ledger.queued_blocked_ns;
    step->queued_ns = now->queued_ns - began->queued_ns - ledger.queued_blocked_ns;
    step->communicating_ns = now->communicating_ns - began->communicating_ns;
    step->process_ns = now->process_ns - began->process_ns;
    step->preemptions = now->preemptions - began->preemptions;
    step->page_faults = now->page_faults - began->page_faults;
}

static struct step sum_up(uint64_t now_ns)
{
    const struct intervals *exposed = &ledger.noted[EXPOSED];
    for (int which = 0; which < NOTED; which++)
        unite(&ledger.noted[which], 0);
    struct step step = {.time_ns = now_ns - ledger.step_begin_ns, .exposed_ns = length(exposed)};
    step.compute_ns =
        length(&ledger.noted[COMPUTING]) - in_both(&ledger.noted[COMPUTING], exposed);
    step.io_ns = length(&ledger.noted[READING]) - in_both(&ledger.noted[READING], exposed);
    step.overlapped_ns =
        length(&ledger.noted[BACKGROUND]) - in_both(&ledger.noted[BACKGROUND], exposed);
    uint64_t counted_ns = step.compute_ns + step.exposed_ns + step.io_ns;
    step.other_ns = step.time_ns > counted_ns ? step.time_ns - counted_ns : 0;
    return step;
}

static void write_step(struct recording *file, struct step step)
{
    struct step *all = &file->all_steps;
    step.index = file->step_count;
    step.start_ns = ledger.step_begin_ns - file->start_clock_ns;
    file->steps[step.index % STEPS] = step;
    if (step.index == 0)
        all->start_ns = step.start_ns;
    all->time_ns += step.time_ns;
    all->compute_ns += step.compute_ns;
    all->exposed_ns += step.exposed_ns;
    all->overlapped_ns += step.overlapped_ns;
    all->io_ns += step.io_ns;
    all->other_ns += step.other_ns;
    all->cpu_ns += step.cpu_ns;
    all->queued_ns += step.queued_ns;
    all->queued_blocked_ns += step.queued_blocked_ns;
    all->communicating_ns += step.communicating_ns;
    all->process_ns += step.process_ns;
    all->preemptions += step.preemptions;
    all->page_faults += step.page_faults;
    all->index = ++file->step_count;
}

static void follow_this_thread(struct recording *file)
{
    if (ledger.schedstat >= 0)
        close(ledger.schedstat);
    ledger.schedstat = open_schedstat();
    if (ledger.schedstat >= 0)
        atomic_store(&file->knows_queue, 1);
}

static void start_step(uint64_t now_ns, struct usage now)
{
    for (int which = 0; which < NOTED; which++)
        ledger.noted[which].end = 0;
    ledger.step_begin_ns = ledger.part_begin_ns = now_ns;
    ledger.step_began = now;
    ledger.queue_read_ns = now.queued_ns;
    ledger.queued_blocked_ns = 0;
    hvprof_handed_over_ns = 0;
    ledger.in_step = true;
    atomic_store_explicit(&ledger.thread, thread_number(), memory_order_relaxed);
    ledger.on = true;
}

static uint64_t region_key(struct recorder *into, const char *name, int kind)
{
    struct kind of = {.operation = name_id(into, name, OPEN_NAMES),
                      .algorithm = name_id(into, KIND_NAMES[kind], NAMES), .traffic = REGION,
                      .source = SOURCE_PROGRAM};
    return cell_key(of, 0);
}

static void write_region(struct recorder *into, const char *name, int kind, uint64_t begin_ns,
                         uint64_t end_ns)
{
    uint64_t key = region_key(into, name, kind);
    uint32_t sequence = (uint32_t)count(into, key, 0, end_ns - begin_ns, 0);
    trace(into, (struct event){.begin_ns = begin_ns, .end_ns = end_ns, .key = key,
                               .sequence = sequence, .thread = thread_id(), .peer = NO_PEER});
}

/* The step that lasted until now ends, and the next begins. */
static void mark_step(struct recorder *into, uint64_t now_ns)
{
    lock(&ledger.lock);
    bool ended = ledger.in_step && on_ledgers_thread();
    uint64_t begin_ns = ledger.step_begin_ns, handed_ns = hvprof_handed_over_ns;
    if (!ended)
        follow_this_thread(into->file);
    struct usage now = usage_now(ledger.schedstat);
    if (ended) {
        end_part(now_ns);
        note_queue(now.queued_ns, is_blocked());
        struct step step = sum_up(now_ns);
        add_usage(&step, &now);
        write_step(into->file, step);
    }
    start_step(now_ns, now);
    unlock(&ledger.lock);
    if (!ended)
        return;
    write_region(into, "step", UNKIND, begin_ns, now_ns);
    if (handed_ns) /* all of them as one: they are too many to be regions */
        count(into, region_key(into, "gradient hooks", COMPUTE), 0, handed_ns, 0);
}

/* Another thread may take the ledger over at any time, and its schedstat with it. */
static void read_queue(bool was_blocked)
{
    if (!on_ledgers_thread())
        return;
    lock(&ledger.lock);
    if (on_ledgers_thread())
        note_queue(queued_ns(ledger.schedstat), was_blocked);
    unlock(&ledger.lock);
}

static void enter_region(struct recorder *into, const char *name, int kind, uint64_t now_ns)
{
    bool was_blocked = is_blocked();
    if (into) {
        lock(&ledger.lock);
        if (!ledger.in_step) {
            follow_this_thread(into->file);
            start_step(now_ns, usage_now(ledger.schedstat));
        }
        if (on_ledgers_thread())
            end_part(now_ns);
        unlock(&ledger.lock);
    }
    if (regions.depth < DEPTH) {
        snprintf(regions.at[regions.depth].name, NAME_BYTES, "%s", name);
        regions.at[regions.depth].kind = kind;
        /* Communication within communication is one wait, and is written once. */
        bool within = kind == COMMUNICATION && regions.communicating++;
        regions.at[regions.depth].begin_ns = into && !within ? now_ns : 0;
    }
    regions.depth++;
    if (into && is_blocked() != was_blocked)
        read_queue(was_blocked);
}

static void leave_region(struct recorder *into, uint64_t now_ns)
{
    if (into && on_ledgers_thread()) {
        lock(&ledger.lock);
        if (on_ledgers_thread())
            end_part(now_ns);
        unlock(&ledger.lock);
    }
    bool was_blocked = is_blocked();
    int left = regions.depth > 0 ? --regions.depth : DEPTH;
    if (into && is_blocked() != was_blocked)
        read_queue(was_blocked);
    if (left < DEPTH && regions.at[left].kind == COMMUNICATION)
        regions.communicating--;
    if (into && left < DEPTH && regions.at[left].begin_ns)
        write_region(into, regions.at[left].name, regions.at[left].kind,
                     regions.at[left].begin_ns, now_ns);
}

#endif
