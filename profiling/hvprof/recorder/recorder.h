/* State of a recording outside the file, its clock and its locks. */
#ifndef HVPROF_RECORDER_H
#define HVPROF_RECORDER_H

#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <time.h>

#include "format.h"

#define EXPORT __attribute__((visibility("default")))

struct recorder {
    struct recording *file;
    struct event *trace;
    struct current *current; /* or NULL */
    struct sites *sites;     /* or NULL */
    char *path;              /* of `file` */
    char *current_path;
    int current_descriptor; /* locked as long as the process lives (beat.h) */
    int descriptor;
    uint32_t cells_there;
    pthread_mutex_t changing;
    struct {
        _Atomic uint64_t key; /* 0 while the place is free */
        _Atomic uint32_t cell;
    } index[1 << INDEX_BITS];
};

/* This process's, from when its job begins. */
static _Atomic(struct recorder *) recorder;

/* Whether a thread gives signs of life (beat.h). */
static _Atomic bool beats;
static _Atomic uint64_t beating_thread;

static uint64_t clock_ns(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* From 1 on, in the order in which threads first ask. Unlike a pthread_t or a thread's id of the
 * kernel it is never given to another thread. */
static uint64_t thread_number(void)
{
    static _Atomic uint64_t last;
    static _Thread_local uint64_t number;
    if (!number)
        number = atomic_fetch_add_explicit(&last, 1, memory_order_relaxed) + 1;
    return number;
}

static void lock(_Atomic uint32_t *held)
{
    while (atomic_exchange_explicit(held, 1, memory_order_acquire))
        while (atomic_load_explicit(held, memory_order_relaxed))
            sched_yield(); /* ranks may share cores, and then threads do too */
}

static void unlock(_Atomic uint32_t *held)
{
    atomic_store_explicit(held, 0, memory_order_release);
}

#endif
