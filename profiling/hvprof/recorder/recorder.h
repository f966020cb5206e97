/* A rank's recording: histograms of fixed size in a file that is mapped into memory.
 *
 * Whatever was counted is in the file at once, so it outlives a killed process. There is
 * one cell for each kind of call (operation, algorithm, traffic, source, datatype,
 * communicator, size bin) and never one for each call: the file grows with the kinds, by
 * some cells at a time, up to CELLS. files.py reads the same layout.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { VERSION = 2, NAMES = 256, NAME_BYTES = 48, COMMUNICATORS = 128, STEPS = 1024 };
/* Regions and datatypes, of which there may be any number, leave room for operations. */
enum { OPEN_NAMES = NAMES - 64 };
enum { CELLS = 4096, CELLS_AT_ONCE = 32, INDEX_BITS = 13, BLOCKS = 32, BUCKETS = 256 };
enum traffic { DATA, CONTROL, TRANSPORT, REGION };
enum source { SOURCE_MPI, SOURCE_HVD_EXT, SOURCE_PROGRAM };
enum name { OTHER, NATIVE }; /* names that are always there */
enum state { RUNNING, FINALIZED, EXITED };

struct step {
    uint64_t index, start_ns, time_ns, compute_ns, exposed_ns, overlapped_ns, io_ns, other_ns;
};

struct offset {
    uint64_t at_ns;
    int64_t offset_ns;
    uint64_t error_ns;
};

struct communicator {
    uint64_t id;
    int32_t size, rank;
    char name[64], ranks[96];
};

struct cell {
    uint64_t key;
    _Atomic uint32_t lock;
    uint32_t block_shift; /* 2^block_shift calls to a block */
    uint64_t calls, bytes, time_ns, wait_ns, min_ns, max_ns;
    uint64_t blocks_ns[BLOCKS];
    uint32_t histogram[BUCKETS];
};

struct recording {
    char magic[8];
    uint32_t version;
    _Atomic uint32_t state;
    int32_t rank, size;
    int64_t pid;
    uint64_t start_unix_ns, end_unix_ns, start_clock_ns;
    _Atomic uint64_t dropped_calls;
    double cost_ns;
    _Atomic uint32_t cells_end, communicators_end;
    uint64_t trace_capacity;
    _Atomic uint64_t trace_calls;
    uint64_t step_count, cache_hits, cache_misses;
    struct offset offsets[2];
    struct step all_steps;
    char clock[64], cache_source[64], host[64], library[384], reserved[216];
    char names[NAMES][NAME_BYTES];
    struct communicator communicators[COMMUNICATORS];
    struct step steps[STEPS];
    struct cell cells[CELLS];
};
_Static_assert(offsetof(struct recording, names) == 1024, "layout");
_Static_assert(offsetof(struct recording, cells) == 101376, "layout");
_Static_assert(sizeof(struct cell) == 1344, "layout");

/* One call of a trace. trace.py reads the same layout. */
struct event {
    _Atomic uint64_t number; /* from 1; 0 while it is written */
    uint64_t begin_ns, end_ns, wait_ns, key, bytes;
    uint32_t sequence; /* of a collective on its communicator, or of a region, from 1 */
    uint32_t thread;
    int32_t peer; /* the root, or whom a message is for or from; -1: nobody */
    uint32_t reserved;
};
_Static_assert(sizeof(struct event) == 64, "layout");

/* What a process keeps of its recording outside the file. */
struct recorder {
    struct recording *file;
    struct event *trace;
    int descriptor;
    uint32_t cells_there;
    pthread_mutex_t changing;
    struct {
        _Atomic uint64_t key; /* 0 while the place is free */
        _Atomic uint32_t cell;
    } index[1 << INDEX_BITS];
};

static uint64_t clock_ns(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* Exact powers of two have bins of their own: coarser rows can then include or exclude
 * their edges, and powers of two can be held against other sizes.
 * 0: no bytes; 2k+1: exactly 2^k; 2k+2: between 2^k and 2^(k+1). */
static unsigned size_bin(uint64_t bytes)
{
    if (bytes == 0)
        return 0;
    unsigned exponent = 63u - (unsigned)__builtin_clzll(bytes);
    return 2 * exponent + 1 + ((bytes & (bytes - 1)) != 0);
}

/* Eight buckets for each power of two from 32 ns on; bins.py knows their edges. */
static unsigned time_bucket(uint64_t time_ns)
{
    if (time_ns < 32)
        return 0;
    unsigned exponent = 63u - (unsigned)__builtin_clzll(time_ns);
    unsigned bucket = (exponent - 5) * 8 + (unsigned)(time_ns >> (exponent - 3) & 7) + 1;
    return bucket < BUCKETS ? bucket : BUCKETS - 1;
}

struct kind {
    int operation, algorithm, datatype, communicator;
    enum traffic traffic;
    enum source source;
};

static uint64_t cell_key(struct kind kind, uint64_t bytes)
{
    return (uint64_t)kind.operation | (uint64_t)kind.algorithm << 8 |
           (uint64_t)size_bin(bytes) << 16 | (uint64_t)kind.traffic << 24 |
           (uint64_t)kind.source << 26 | (uint64_t)kind.datatype << 28 |
           (uint64_t)kind.communicator << 36 | (uint64_t)1 << 63;
}

/* The number of a name, which is entered if it is new; OTHER when there is no room left
 * among the first `places`. */
static int name_id(struct recorder *into, const char *name, int places)
{
    char(*names)[NAME_BYTES] = into->file->names;
    int id = NATIVE;
    if (!*name)
        return OTHER;
    pthread_mutex_lock(&into->changing);
    while (id < NAMES && names[id][0] && strncmp(names[id], name, NAME_BYTES - 1))
        id++;
    bool known = id < NAMES && names[id][0];
    if (!known && id < places)
        strncpy(names[id], name, NAME_BYTES - 1);
    else if (!known)
        id = OTHER;
    pthread_mutex_unlock(&into->changing);
    return id;
}

/* Storing to a hole of a mapped file on a full disk would kill the program. */
static bool has_room(struct recorder *into, uint32_t cells)
{
    if (cells <= into->cells_there)
        return true;
    if (cells > CELLS)
        return false;
    uint32_t wanted = into->cells_there + CELLS_AT_ONCE;
    size_t end = offsetof(struct recording, cells) + wanted * sizeof(struct cell);
    if (posix_fallocate(into->descriptor, 0, (off_t)end))
        return false;
    into->cells_there = wanted;
    return true;
}

static struct cell *add_cell(struct recorder *into, uint64_t key, uint64_t place)
{
    struct recording *file = into->file;
    struct cell *cell = NULL;
    pthread_mutex_lock(&into->changing);
    /* Another thread may have been first: look on from where nothing was found. */
    while (into->index[place].key && into->index[place].key != key)
        place = (place + 1) % (1 << INDEX_BITS);
    uint32_t number = file->cells_end;
    if (into->index[place].key == key) {
        cell = &file->cells[into->index[place].cell];
    } else if (has_room(into, number + 1)) {
        cell = &file->cells[number];
        cell->key = key;
        file->cells_end = number + 1;
        into->index[place].cell = number;
        into->index[place].key = key;
    }
    pthread_mutex_unlock(&into->changing);
    return cell;
}

static struct cell *find_cell(struct recorder *into, uint64_t key)
{
    uint64_t place = key * 0x9e3779b97f4a7c15u >> (64 - INDEX_BITS);
    for (;; place = (place + 1) % (1 << INDEX_BITS)) {
        uint64_t found = atomic_load_explicit(&into->index[place].key, memory_order_acquire);
        if (found == key)
            return &into->file->cells[into->index[place].cell];
        if (!found)
            return add_cell(into, key, place);
    }
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

/* When the blocks are full, each two become one of twice the calls. */
static void add_to_block(struct cell *cell, uint64_t call, uint64_t time_ns)
{
    if (call >> cell->block_shift == BLOCKS) {
        for (int i = 0; i < BLOCKS / 2; i++)
            cell->blocks_ns[i] = cell->blocks_ns[2 * i] + cell->blocks_ns[2 * i + 1];
        memset(cell->blocks_ns + BLOCKS / 2, 0, sizeof cell->blocks_ns / 2);
        cell->block_shift++;
    }
    cell->blocks_ns[call >> cell->block_shift] += time_ns;
}

/* Returns which call of its kind it is, from 1; 0 if there is no room for its kind. */
static uint64_t count(struct recorder *into, uint64_t key, uint64_t bytes, uint64_t time_ns,
                      uint64_t wait_ns)
{
    struct cell *cell = find_cell(into, key);
    if (!cell) {
        atomic_fetch_add_explicit(&into->file->dropped_calls, 1, memory_order_relaxed);
        return 0;
    }
    lock(&cell->lock);
    uint64_t call = cell->calls++;
    cell->bytes += bytes;
    cell->time_ns += time_ns;
    cell->wait_ns += wait_ns;
    if (call == 0 || time_ns < cell->min_ns)
        cell->min_ns = time_ns;
    if (time_ns > cell->max_ns)
        cell->max_ns = time_ns;
    uint32_t *bucket = &cell->histogram[time_bucket(time_ns)];
    *bucket += *bucket != UINT32_MAX;
    add_to_block(cell, call, time_ns);
    unlock(&cell->lock);
    return call + 1;
}

/* Write a call into the ring of the trace, over the oldest. */
static void trace(struct recorder *into, struct event call)
{
    if (!into->trace)
        return;
    uint64_t number = atomic_fetch_add_explicit(&into->file->trace_calls, 1, memory_order_relaxed);
    struct event *place = &into->trace[number % into->file->trace_capacity];
    atomic_store_explicit(&place->number, 0, memory_order_relaxed);
    atomic_thread_fence(memory_order_release);
    call.number = 0;
    memcpy((char *)place + sizeof place->number, (char *)&call + sizeof call.number,
           sizeof call - sizeof call.number);
    atomic_store_explicit(&place->number, number + 1, memory_order_release);
}

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

static void begin_recording(struct recorder *into)
{
    pthread_mutex_init(&into->changing, NULL);
    strcpy(into->file->names[OTHER], "other");
    strcpy(into->file->names[NATIVE], "native");
    /* The first stands for none: that of a wait, which may be for anybody of the job. */
    into->file->communicators[0].size = into->file->size;
    into->file->communicators_end = 1;
}

static void open_trace(struct recorder *into, const char *directory, uint64_t events)
{
    char path[4096];
    size_t bytes = (events + 1) * sizeof(struct event); /* the first place is the head */
    int descriptor;
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
                strerror(errno), errno == EEXIST ? "; a recording holds one MPI job" : "");
        free(made);
        return NULL;
    }
    struct recording *file = made->file;
    file->version = VERSION;
    file->rank = rank;
    file->size = size;
    file->pid = getpid();
    file->start_unix_ns = clock_ns(CLOCK_REALTIME);
    file->start_clock_ns = clock_ns(CLOCK_MONOTONIC);
    gethostname(file->host, sizeof file->host - 1);
    begin_recording(made);
    if (events)
        open_trace(made, directory, events);
    memcpy(file->magic, "hvprof\r\n", sizeof file->magic);
    return made;
}

static void close_recording(struct recorder *made, enum state how)
{
    if (made && atomic_load(&made->file->state) == RUNNING) {
        made->file->end_unix_ns = clock_ns(CLOCK_REALTIME);
        atomic_store(&made->file->state, how);
    }
}
