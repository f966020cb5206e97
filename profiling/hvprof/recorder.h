/* A rank's recording: a histogram of fixed size in a file that is mapped into memory.
 *
 * Whatever was counted is in the file at once, so it outlives a killed process. Memory
 * is bounded because there is one cell for each (operation, algorithm, traffic, source,
 * ranks, size bin) and never one for each call. recording.py reads the same layout.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { VERSION = 1, NAME_BYTES = 32, NAMES = 128, CELL_BITS = 11, CELLS = 1 << CELL_BITS };
enum traffic { DATA, CONTROL, TRANSPORT };
enum source { SOURCE_MPI, SOURCE_HVD_EXT };
enum name { OTHER, NATIVE }; /* names that are always there */
enum state { RUNNING, FINALIZED, EXITED };

struct cell {
    _Atomic uint64_t key; /* 0 while the cell is free */
    _Atomic uint64_t calls, bytes, time_ns, wait_ns;
    _Atomic uint64_t max_ns;
    _Atomic uint64_t inverted_min_ns; /* ~min, so that an untouched cell is all zeros */
    uint64_t reserved;
};

struct recording {
    char magic[8];
    uint32_t version;
    _Atomic uint32_t state;
    int32_t rank, size;
    int64_t pid;
    uint64_t start_unix_ns;
    _Atomic uint64_t end_unix_ns;
    _Atomic uint64_t dropped_calls;
    double cost_ns;
    char host[64];
    char library[384];
    char names[NAMES][NAME_BYTES];
    struct cell cells[CELLS];
};
_Static_assert(sizeof(struct recording) == 512 + NAMES * NAME_BYTES + CELLS * 64, "layout");

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

static uint64_t cell_key(int operation, int algorithm, enum traffic traffic, enum source source,
                         int ranks, uint64_t bytes)
{
    return (uint32_t)ranks | (uint64_t)operation << 32 | (uint64_t)algorithm << 40 |
           (uint64_t)size_bin(bytes) << 48 | (uint64_t)traffic << 56 | (uint64_t)source << 58 |
           (uint64_t)1 << 63;
}

/* The number of a name, which is entered if it is new; OTHER when there is no room left. */
static int name_id(struct recording *into, const char *name)
{
    static pthread_mutex_t entering = PTHREAD_MUTEX_INITIALIZER;
    int id = NATIVE;
    pthread_mutex_lock(&entering);
    while (id < NAMES && into->names[id][0] && strncmp(into->names[id], name, NAME_BYTES - 1))
        id++;
    if (id == NAMES)
        id = OTHER;
    else if (!into->names[id][0])
        strncpy(into->names[id], name, NAME_BYTES - 1);
    pthread_mutex_unlock(&entering);
    return id;
}

static struct cell *find_cell(struct recording *into, uint64_t key)
{
    uint64_t start = key * 0x9e3779b97f4a7c15u >> (64 - CELL_BITS);
    for (uint64_t step = 0; step < CELLS; step++) {
        struct cell *cell = &into->cells[(start + step) % CELLS];
        uint64_t found = atomic_load_explicit(&cell->key, memory_order_relaxed);
        if (found == key)
            return cell;
        if (found == 0 && (atomic_compare_exchange_strong(&cell->key, &found, key) || found == key))
            return cell;
    }
    return NULL;
}

static void add(_Atomic uint64_t *total, uint64_t amount)
{
    atomic_fetch_add_explicit(total, amount, memory_order_relaxed);
}

static void raise_to(_Atomic uint64_t *highest, uint64_t value)
{
    uint64_t seen = atomic_load_explicit(highest, memory_order_relaxed);
    while (seen < value && !atomic_compare_exchange_weak(highest, &seen, value))
        ;
}

static void count(struct recording *into, uint64_t key, uint64_t bytes, uint64_t time_ns,
                  uint64_t wait_ns)
{
    struct cell *cell = find_cell(into, key);
    if (!cell) {
        add(&into->dropped_calls, 1);
        return;
    }
    add(&cell->calls, 1);
    add(&cell->bytes, bytes);
    add(&cell->time_ns, time_ns);
    if (wait_ns)
        add(&cell->wait_ns, wait_ns);
    raise_to(&cell->max_ns, time_ns);
    raise_to(&cell->inverted_min_ns, ~time_ns);
}

static struct recording *map_file(const char *path)
{
    size_t bytes = sizeof(struct recording);
    int file = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (file < 0)
        return NULL;
    /* Storing to a hole of a mapped file on a full disk would kill the program. */
    errno = posix_fallocate(file, 0, (off_t)bytes);
    void *map = errno ? MAP_FAILED : mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    int reason = errno;
    close(file);
    if (map == MAP_FAILED) {
        unlink(path);
        errno = reason;
        return NULL;
    }
    return map;
}

/* The file of this rank in `directory`, or NULL after a line that says why not. */
static struct recording *create_recording(const char *directory, int rank, int size)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/rank-%05d.hvprof", directory, rank);
    struct recording *made = map_file(path);
    if (!made) {
        fprintf(stderr, "hvprof: rank %d is not recorded: cannot create %s: %s%s\n", rank, path,
                strerror(errno), errno == EEXIST ? "; a recording holds one MPI job" : "");
        return NULL;
    }
    made->version = VERSION;
    made->rank = rank;
    made->size = size;
    made->pid = getpid();
    made->start_unix_ns = clock_ns(CLOCK_REALTIME);
    gethostname(made->host, sizeof made->host - 1);
    strcpy(made->names[OTHER], "other");
    strcpy(made->names[NATIVE], "native");
    memcpy(made->magic, "hvprof\r\n", sizeof made->magic);
    return made;
}

static void close_recording(struct recording *made, enum state how)
{
    /* A forked child shares the map, and ends before the rank does. */
    if (made && made->pid == getpid() && atomic_load(&made->state) == RUNNING) {
        atomic_store(&made->end_unix_ns, clock_ns(CLOCK_REALTIME));
        atomic_store(&made->state, how);
    }
}
