/* Kernel counters of threads: of the one that marks steps, and of those that communicate. */
#ifndef HVPROF_KERNEL_H
#define HVPROF_KERNEL_H

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

#include "recorder.h"

enum { THREADS = 64 };

/* Since the thread, the process or the listing of a thread began. */
struct usage {
    uint64_t cpu_ns, queued_ns, communicating_ns, process_ns, preemptions, page_faults;
};

/* Threads that called MPI or reported an exchange, as they first did so. */
static struct {
    _Atomic uint32_t lock, end;
    struct {
        uint64_t thread;
        clockid_t clock;
        uint64_t begin_ns, last_ns;
    } at[THREADS];
} communicating;

static _Thread_local bool listed;

/* When the first call of the run began, and the last one ended. */
static _Atomic uint64_t first_call_ns, last_call_ns;

static void note_first_and_last(uint64_t begin_ns, uint64_t end_ns)
{
    if (!atomic_load_explicit(&first_call_ns, memory_order_relaxed))
        first_call_ns = begin_ns;
    atomic_store_explicit(&last_call_ns, end_ns, memory_order_relaxed);
}

static void list_this_thread(void)
{
    if (listed)
        return;
    listed = true;
    lock(&communicating.lock);
    uint32_t end = communicating.end;
    clockid_t clock;
    if (end < THREADS && !pthread_getcpuclockid(pthread_self(), &clock)) {
        uint64_t now_ns = clock_ns(CLOCK_THREAD_CPUTIME_ID);
        communicating.at[end].thread = thread_number();
        communicating.at[end].clock = clock;
        communicating.at[end].begin_ns = communicating.at[end].last_ns = now_ns;
        communicating.end = end + 1;
    }
    unlock(&communicating.lock);
}

/* While this thread alone may have been listed. */
static void unlist_this_thread(void)
{
    communicating.end = 0;
    listed = false;
}

/* CPU time of the listed threads but this one; of one that has ended, what was read last. */
static uint64_t communicating_ns(void)
{
    uint64_t sum = 0;
    lock(&communicating.lock);
    for (uint32_t i = 0; i < communicating.end; i++) {
        if (communicating.at[i].thread == thread_number())
            continue;
        struct timespec now;
        uint64_t *last_ns = &communicating.at[i].last_ns;
        if (!clock_gettime(communicating.at[i].clock, &now)) {
            uint64_t now_ns = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
            *last_ns = now_ns > *last_ns ? now_ns : *last_ns;
        }
        sum += *last_ns - communicating.at[i].begin_ns;
    }
    unlock(&communicating.lock);
    return sum;
}

/* The schedstat of this thread, or -1 where the kernel does not count it. */
static int open_schedstat(void)
{
    char text[96] = "";
    int file = open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC);
    unsigned long long ran, queued, turns = 0;
    if (file < 0)
        return -1;
    /* A kernel without these counters writes zeros; a thread that runs has had its turn. */
    if (pread(file, text, sizeof text - 1, 0) > 0 &&
        sscanf(text, "%llu %llu %llu", &ran, &queued, &turns) == 3 && turns)
        return file;
    close(file);
    return -1;
}

/* How long the schedstat's thread was ready to run while others had the cores. */
static uint64_t queued_ns(int schedstat)
{
    char text[96], *second;
    ssize_t length = schedstat < 0 ? 0 : pread(schedstat, text, sizeof text - 1, 0);
    if (length <= 0)
        return 0;
    text[length] = '\0';
    strtoull(text, &second, 10);
    return strtoull(second, NULL, 10);
}

static struct usage usage_now(int schedstat)
{
    struct rusage thread = {0};
    getrusage(RUSAGE_THREAD, &thread);
    return (struct usage){
        .cpu_ns = clock_ns(CLOCK_THREAD_CPUTIME_ID),
        .queued_ns = queued_ns(schedstat),
        .communicating_ns = communicating_ns(),
        .process_ns = clock_ns(CLOCK_PROCESS_CPUTIME_ID),
        .preemptions = (uint64_t)thread.ru_nivcsw,
        .page_faults = (uint64_t)(thread.ru_minflt + thread.ru_majflt),
    };
}

#endif
