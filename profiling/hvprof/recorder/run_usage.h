/* Of the whole run, from MPI_Init to MPI_Finalize: time on cores and without one, threads, and
 * bytes of files. It tells computing from I/O and from waiting for a core. */
#ifndef HVPROF_RUN_USAGE_H
#define HVPROF_RUN_USAGE_H

#include <dirent.h>
#include <stdio.h>
#include <string.h>

#include "kernel.h"

/* The value that follows `name` in a file of /proc, 0 where it is not there. */
static uint64_t value_in(const char *path, const char *name)
{
    char line[128];
    unsigned long long value = 0;
    FILE *file = fopen(path, "re");
    while (file && fgets(line, sizeof line, file))
        if (!strncmp(line, name, strlen(name)) && sscanf(line + strlen(name), "%llu", &value) == 1)
            break;
    if (file)
        fclose(file);
    return value;
}

/* Time that the threads of this process which are alive, but not the recorder's, were ready to run
 * without a core. */
static uint64_t process_queued_ns(void)
{
    uint64_t sum = 0;
    DIR *tasks = opendir("/proc/self/task");
    struct dirent *task;
    while (tasks && (task = readdir(tasks))) {
        char path[300];
        unsigned long long ran, queued;
        snprintf(path, sizeof path, "/proc/self/task/%s/schedstat", task->d_name);
        bool ours = strtoull(task->d_name, NULL, 10) == atomic_load(&beating_thread);
        FILE *file = task->d_name[0] == '.' || ours ? NULL : fopen(path, "re");
        if (!file)
            continue;
        if (fscanf(file, "%llu %llu", &ran, &queued) == 2)
            sum += queued;
        fclose(file);
    }
    if (tasks)
        closedir(tasks);
    return sum;
}

static uint64_t queued_now_ns(void)
{
    int schedstat = open_schedstat();
    uint64_t queued = queued_ns(schedstat);
    if (schedstat >= 0)
        close(schedstat);
    return queued;
}

static struct run_usage run_usage_now(uint64_t cpu_ns, uint64_t queued_ns)
{
    return (struct run_usage){
        .cpu_ns = cpu_ns,
        .queued_ns = queued_ns,
        .process_ns = clock_ns(CLOCK_PROCESS_CPUTIME_ID),
        .process_queued_ns = process_queued_ns(),
        .file_bytes = value_in("/proc/self/io", "rchar:") + value_in("/proc/self/io", "wchar:"),
        .threads = (uint32_t)value_in("/proc/self/status", "Threads:") - atomic_load(&beats),
        .calling_threads = communicating.end,
    };
}

static struct run_usage run_began;
static bool run_has_ended;
static _Atomic uint32_t usage_lock; /* of these, and of the file's usage */

static void begin_run(void)
{
    first_call_ns = last_call_ns = 0; /* calls were tried before */
    run_began = run_usage_now(clock_ns(CLOCK_THREAD_CPUTIME_ID), queued_now_ns());
}

static void write_run_usage(struct recording *file, struct run_usage usage)
{
    usage.cpu_ns -= run_began.cpu_ns;
    usage.queued_ns -= run_began.queued_ns;
    usage.process_ns -= run_began.process_ns;
    /* Threads that have ended took theirs with them. */
    usage.process_queued_ns -= usage.process_queued_ns < run_began.process_queued_ns
                                   ? usage.process_queued_ns
                                   : run_began.process_queued_ns;
    usage.file_bytes -= run_began.file_bytes;
    if (first_call_ns) {
        usage.before_ns = first_call_ns - file->start_clock_ns;
        usage.after_ns = clock_ns(CLOCK_MONOTONIC) - last_call_ns;
    }
    file->usage = usage;
    if (usage.queued_ns || usage.process_queued_ns)
        atomic_store(&file->knows_queue, 1);
}

static void end_run(struct recording *file)
{
    struct run_usage usage = run_usage_now(clock_ns(CLOCK_THREAD_CPUTIME_ID), queued_now_ns());
    lock(&usage_lock);
    run_has_ended = true;
    write_run_usage(file, usage);
    unlock(&usage_lock);
}

/* The same so far, of the first thread: of a rank that is killed, it is all there is. */
static void note_run_usage(struct recording *file)
{
    char path[64];
    unsigned long long ran = 0, queued = 0;
    snprintf(path, sizeof path, "/proc/self/task/%d/schedstat", (int)getpid());
    FILE *counts = fopen(path, "re");
    bool known = counts && fscanf(counts, "%llu %llu", &ran, &queued) == 2;
    if (counts)
        fclose(counts);
    struct run_usage usage = run_usage_now(ran, queued);
    lock(&usage_lock);
    if (known && !run_has_ended)
        write_run_usage(file, usage);
    unlock(&usage_lock);
}

#endif
