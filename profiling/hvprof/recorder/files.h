/* The files of a rank: made when MPI starts, closed when it ends. */
#ifndef HVPROF_FILES_H
#define HVPROF_FILES_H

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "recorder.h"

enum { MOST_EVENTS_BITS = 40 }; /* of a trace: 2^40 calls take 64 TiB */

/* A new file, of which `bytes` are there and `reach` can be addressed as it grows. */
static void *map_file(const char *path, size_t bytes, size_t reach, int *descriptor)
{
    int file = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (file < 0)
        return NULL;
    errno = posix_fallocate(file, 0, (off_t)bytes);
    void *map = errno ? MAP_FAILED : mmap(NULL, reach, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    int reason = errno;
    if (map == MAP_FAILED) {
        close(file);
        unlink(path);
        errno = reason;
        return NULL;
    }
    *descriptor = file;
    return map;
}

/* Cores that the first thread may use; 0 where there are more than a set holds. */
static uint32_t usable_cores(void)
{
    cpu_set_t cores;
    return sched_getaffinity(0, sizeof cores, &cores) ? 0 : (uint32_t)CPU_COUNT(&cores);
}

static void begin_recording(struct recorder *into)
{
    pthread_mutex_init(&into->changing, NULL);
    strcpy(into->file->names[OTHER], "other");
    strcpy(into->file->names[NATIVE], "native");
    /* The first stands for none: that of a wait, which may be for any rank of the job. */
    into->file->communicators[0].size = into->file->size;
    into->file->communicators_end = 1;
}

static void open_trace(struct recorder *into, const char *directory, uint64_t events)
{
    char path[4096];
    int descriptor;
    if (events >> MOST_EVENTS_BITS) {
        fprintf(stderr, "hvprof: rank %d has no trace: HVPROF_TRACE is %llu, use at most 2^%d\n",
                into->file->rank, (unsigned long long)events, MOST_EVENTS_BITS);
        return;
    }
    size_t bytes = (events + 1) * sizeof(struct event); /* the first place is the head */
    snprintf(path, sizeof path, "%s/rank-%05d.trace", directory, into->file->rank);
    char *map = map_file(path, bytes, bytes, &descriptor);
    if (!map) {
        fprintf(stderr, "hvprof: rank %d has no trace: cannot create %s: %s\n", into->file->rank,
                path, strerror(errno));
        return;
    }
    close(descriptor);
    memcpy(map, "hvtrace\n", 8);
    ((uint32_t *)map)[2] = VERSION;
    ((uint32_t *)map)[3] = (uint32_t)into->file->rank;
    into->file->trace_capacity = events;
    into->trace = (struct event *)map + 1;
}

/* The file of current calls; it is there for as long as the job runs, and stays after a job that
 * died, and where it lists connections between hosts. */
static void open_current(struct recorder *into, const char *directory)
{
    char path[4096];
    int descriptor;
    snprintf(path, sizeof path, "%s/rank-%05d.now", directory, into->file->rank);
    struct current *map = map_file(path, sizeof *map, sizeof *map, &descriptor);
    if (!map) {
        fprintf(stderr, "hvprof: rank %d has no current calls: cannot create %s: %s\n",
                into->file->rank, path, strerror(errno));
        return;
    }
    map->version = CURRENT_VERSION;
    map->rank = into->file->rank;
    if (readlink("/proc/self/ns/pid", map->processes, sizeof map->processes - 1) < 0)
        map->processes[0] = '\0';
    memcpy(map->magic, "hvpnow\r\n", sizeof map->magic);
    into->current = map;
    into->current_descriptor = descriptor;
    into->current_path = strdup(path);
}

static void open_sites(struct recorder *into, const char *directory)
{
    char path[4096];
    int descriptor;
    snprintf(path, sizeof path, "%s/rank-%05d.sites", directory, into->file->rank);
    struct sites *map = map_file(path, sizeof *map, sizeof *map, &descriptor);
    if (!map) {
        fprintf(stderr, "hvprof: rank %d has no call sites: cannot create %s: %s\n",
                into->file->rank, path, strerror(errno));
        return;
    }
    close(descriptor);
    map->version = SITES_VERSION;
    map->rank = into->file->rank;
    memcpy(map->magic, "hvpsite\n", sizeof map->magic);
    into->sites = map;
}

/* The recorder of this rank, with its files in `directory`, or NULL after a line that says
 * why not. A trace holds the last `events` calls, or is not kept where that is 0. */
static struct recorder *create_recorder(const char *directory, int rank, int size, uint64_t events)
{
    char path[4096];
    struct recorder *made = calloc(1, sizeof *made);
    if (!made)
        return NULL;
    snprintf(path, sizeof path, "%s/rank-%05d.hvprof", directory, rank);
    size_t bytes = offsetof(struct recording, cells) + CELLS_AT_ONCE * sizeof(struct cell);
    made->cells_there = CELLS_AT_ONCE;
    made->file = map_file(path, bytes, sizeof(struct recording), &made->descriptor);
    if (!made->file) {
        fprintf(stderr, "hvprof: rank %d is not recorded: cannot create %s: %s%s\n", rank, path,
                strerror(errno), errno == EEXIST ? "; it is an earlier job's" : "");
        free(made);
        return NULL;
    }
    made->path = strdup(path);
    struct recording *file = made->file;
    file->version = VERSION;
    file->rank = rank;
    file->size = size;
    file->pid = getpid();
    file->start_unix_ns = clock_ns(CLOCK_REALTIME);
    file->start_clock_ns = clock_ns(CLOCK_MONOTONIC);
    gethostname(file->host, sizeof file->host - 1);
    file->cores = usable_cores();
    file->host_cores = (uint32_t)sysconf(_SC_NPROCESSORS_ONLN);
    begin_recording(made);
    if (events)
        open_trace(made, directory, events);
    open_current(made, directory);
    memcpy(file->magic, "hvprof\r\n", sizeof file->magic);
    if (made->trace && size > 1)
        msync(file, offsetof(struct recording, names), MS_SYNC); /* for rank 0, on another host */
    return made;
}

static void close_recording(struct recorder *made, enum state how)
{
    if (made && atomic_load(&made->file->state) == RUNNING) {
        made->file->end_unix_ns = clock_ns(CLOCK_REALTIME);
        atomic_store(&made->file->state, how);
        if (how == FINALIZED && made->current_path && !made->current->beat.count)
            unlink(made->current_path);
    }
}

#endif
