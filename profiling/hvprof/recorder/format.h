/* A rank's recording and its trace, as they lie in their files. format/layout.py, key.py and
 * bins.py read the same layout; a test holds them against this.
 *
 * A recording is histograms of fixed size in a file that is mapped into memory. Whatever was
 * counted is in the file at once, so it outlives a killed process. There is one cell for each
 * kind of call (operation, algorithm, traffic, source, datatype, communicator, size bin) and
 * never one for each call: the file grows with the kinds, by some cells at a time, up to
 * CELLS. Messages are counted once more by partner, a cell for each rank that is sent to and
 * one for each that is received from. */
#ifndef HVPROF_FORMAT_H
#define HVPROF_FORMAT_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

enum { VERSION = 4, NAMES = 256, NAME_BYTES = 48, COMMUNICATORS = 128, STEPS = 1024 };
/* Regions and datatypes, of which there may be any number, leave room for operations. */
enum { OPEN_NAMES = NAMES - 64 };
enum { PARTNERS = 256, OTHER_PARTNERS = (1 << 18) - 1 }; /* cells of partners; those past them */
enum { CELLS = 4096, CELLS_AT_ONCE = 32, INDEX_BITS = 13, BLOCKS = 32, BUCKETS = 256 };
enum traffic { DATA, CONTROL, TRANSPORT, TUNING, REGION, PARTNER };
enum source { SOURCE_MPI, SOURCE_HVD_EXT, SOURCE_PROGRAM, SOURCE_TORCH };
enum name { OTHER, NATIVE }; /* names that are always there */
enum state { RUNNING, FINALIZED, EXITED };

struct step {
    uint64_t index, start_ns, time_ns, compute_ns, exposed_ns, overlapped_ns, io_ns, other_ns;
    /* Kernel counters: the thread's time on a core, its time without one outside of
     * communication and I/O, and within them; and the time on cores of the threads that
     * communicate, and of the whole process. */
    uint64_t cpu_ns, queued_ns, queued_blocked_ns, communicating_ns, process_ns;
    uint64_t preemptions, page_faults;
};

struct offset {
    uint64_t at_ns;
    int64_t offset_ns;
    uint64_t error_ns;
};

/* Of a rank from MPI_Init to MPI_Finalize, or so far: it is written every two seconds. */
struct run_usage {
    uint64_t finalize_ns; /* within MPI_Finalize */
    /* On cores, and ready to run without one: of the thread that called MPI_Finalize, and of
     * all threads. */
    uint64_t cpu_ns, queued_ns, process_ns, process_queued_ns;
    uint64_t before_ns, after_ns; /* until its first call began, and since its last one ended */
    uint64_t file_bytes; /* that its system calls read and wrote, those of sockets included */
    uint32_t threads, calling_threads; /* alive at the end; that called MPI */
};

/* The machine: its clock is read every two seconds, the CPU quota at every beat, and its core is
 * tried after calls, every 5 ms at most. */
struct machine {
    uint64_t mhz_sum; /* of the clock of its first thread's core, over all looks */
    uint32_t looks;
    /* Periods of the control group's CPU quota, and those in which the quota ran out. */
    uint32_t periods, throttled;
    uint32_t quota_millicores; /* 0: no quota */
    /* Each trial is the same work, and stands for the time since the one before: that time, and
     * the sum of its product with the trial's. */
    _Atomic uint64_t tried_ns, trials_ns2;
    _Atomic uint32_t trials;
    uint32_t unused;
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
    uint64_t calls;
    uint64_t bytes; /* of the calls; of those that wait for requests, of the requests that ended */
    uint64_t time_ns;
    union {
        uint64_t wait_ns;
        uint64_t ended; /* of calls that wait for requests: how many ended */
    };
    uint64_t min_ns, max_ns;
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
    char clock[64], cache_source[64], host[64], library[384];
    uint32_t cores, host_cores; /* that this process may use; that its host has */
    _Atomic uint32_t knows_queue;
    uint32_t yields;
    struct run_usage usage;
    struct machine machine;
    char reserved[24];
    char names[NAMES][NAME_BYTES];
    struct communicator communicators[COMMUNICATORS];
    struct step steps[STEPS];
    struct cell cells[CELLS];
};
_Static_assert(offsetof(struct recording, names) == 1024, "layout");
_Static_assert(offsetof(struct recording, cells) == 158720, "layout");
_Static_assert(sizeof(struct cell) == 1344, "layout");

enum { NO_PEER = -1, ANY_PEER = -2 };

/* One call of a trace. */
struct event {
    _Atomic uint64_t number; /* from 1; 0 while it is written */
    uint64_t begin_ns, end_ns, wait_ns, key, bytes;
    uint32_t sequence; /* of a collective on its communicator, or of a region, from 1 */
    uint32_t thread;
    int32_t peer; /* the root, or the other rank of a message; or NO_PEER */
    uint32_t queued_us; /* that an exchange was ready before it began, plus 1; 0: unknown */
};
_Static_assert(sizeof(struct event) == 64, "layout");

/* What a thread does now, in the file of a rank's current calls, which is mapped as well and
 * begins with the head. Whoever reads it takes a slot that two readings show unchanged. */
enum { CURRENT_VERSION = 4, SLOTS = 64, LATEST = 8, LATE = 8, SUBMITTED = 2048, SENT = 32 };
enum slot_flags { IN_CALL = 1, COORDINATION = 2, COLLECTIVE_CALL = 4, REPORTED = 8, BY_NAME = 16 };

struct slot {
    _Atomic uint64_t changes; /* odd while it is written */
    _Atomic uint32_t thread;  /* of the kernel; 0: free */
    uint32_t flags;
    uint64_t since_ns; /* of the call, or of the end of the last one */
    uint64_t bytes; /* 0: unknown */
    uint32_t number; /* of a collective on its communicator, from 1; 0: unknown. BY_NAME: its key */
    uint16_t operation, communicator;
    uint16_t started; /* by a wait: the non-blocking operation that it is for */
    uint16_t requests;
    int32_t peer; /* in the world: the root, the rank it waits for; NO_PEER or ANY_PEER */
    uint64_t region_since_ns;
    uint32_t region_kind;
    uint32_t late_count;     /* of a REPORTED wait: ranks that are known to be late */
    char region[NAME_BYTES]; /* the innermost one, "" for none */
    int32_t late[LATE];      /* the first of these, in the world */
    uint32_t tag;            /* of a message, plus 1; 0: none, or any */
    char about[108];         /* of a REPORTED wait: what is waited for */
};
_Static_assert(sizeof(struct slot) == 256, "layout");

/* A TCP connection of the process to another host. */
struct connection {
    uint32_t local, remote; /* IPv4, in the network's order */
    uint32_t stuck_ms;      /* since the peer last acknowledged any of what waits */
    /* Since the first look in a call that lasts: how long data waited, and segments sent again. */
    uint32_t waited_ms, again;
    uint32_t unsent_ms; /* of waited_ms, none was under way though the peer would take it */
    uint64_t queued_bytes;    /* handed to the kernel, and not acknowledged */
    uint64_t delivered_bytes; /* acknowledged, while data waited */
    /* Since it began, as the kernel counts: with data that the peer would take and has not
     * acknowledged; segments sent again; bytes acknowledged. */
    uint32_t busy_ms, resent;
    uint64_t acked_bytes;
};

/* The latest sign of life, by a thread of the recorder's own. */
enum { CONNECTIONS = 16, ADDRESSES = 4 };
enum beat_flags { HOLDS_LOCK = 1, NO_CARRIER = 2 };
struct beat {
    _Atomic uint64_t changes; /* odd while it is written */
    uint64_t at_ns;           /* 0: none yet */
    uint32_t state;           /* of the first thread, as /proc has it: 'R', 'S', 'D', ... */
    uint32_t flags;
    char interface[16]; /* without a carrier */
    uint32_t addresses[ADDRESSES]; /* of this end of its connections, idle ones too; 0: no more */
    uint32_t count, unused;
    struct connection connections[CONNECTIONS];
};
_Static_assert(sizeof(struct beat) == 960, "layout");

/* A message that this rank has sent. */
struct sent {
    uint64_t bytes;
    int32_t to;      /* in the world */
    uint32_t tag;    /* plus 1 */
    uint32_t number; /* of those to this rank, from 1 */
    uint32_t communicator;
};

struct current {
    char magic[8];
    uint32_t version;
    int32_t rank;
    char processes[32], reserved[80]; /* the name of its space of process ids */
    /* How many collectives it entered on each communicator, and the latest of these:
     * number N is at N % LATEST. */
    uint32_t entered[COMMUNICATORS];
    uint16_t latest[COMMUNICATORS][LATEST];
    struct slot slots[SLOTS];
    /* The keys of operations that ranks match by name: number N of those that this rank
     * submitted, from 0, is at N % SUBMITTED. */
    _Atomic uint32_t submitted_end, unused;
    uint32_t submitted[SUBMITTED];
    struct beat beat;
    /* The latest: number N, from 0, is at N % SENT. */
    _Atomic uint32_t sent_end, more_unused;
    struct sent sent[SENT];
};
_Static_assert(offsetof(struct current, slots) == 2688, "layout");
_Static_assert(offsetof(struct current, submitted) == 19080, "layout");

/* Calls by the place that makes them, in a file that is mapped as well and begins with the head. */
enum { SITES_VERSION = 1, SITES = 1024, OBJECTS = 64, OBJECT_BYTES = 256 };

struct site {
    _Atomic uint64_t key;      /* 0: free; the first is always: it stands for no place */
    uint64_t offset;           /* of the instruction after the call, in the object */
    uint32_t operation, object; /* number of the name; of the object from 1, 0: not known */
    _Atomic uint64_t calls, time_ns, max_ns;
    uint32_t line; /* in the object, which then is a file of Python; 0: it is an executable or library */
    uint32_t extension; /* an enum extension: Python's lines are counted in its place */
    uint64_t reserved;
};
_Static_assert(sizeof(struct site) == 64, "layout");

struct sites {
    char magic[8];
    uint32_t version;
    int32_t rank;
    char reserved[48];
    char objects[OBJECTS][OBJECT_BYTES]; /* executable and libraries, by their paths */
    struct site at[SITES];
};
_Static_assert(offsetof(struct sites, at) == 16448, "layout");

/* Exact powers of two have bins of their own: coarser rows can then include or exclude
 * their edges, and powers of two can be compared with other sizes.
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
    int operation, algorithm, datatype, communicator, partner;
    enum traffic traffic;
    enum source source;
};

static uint64_t cell_key(struct kind kind, uint64_t bytes)
{
    return (uint64_t)kind.operation | (uint64_t)kind.algorithm << 8 |
           (uint64_t)size_bin(bytes) << 16 | (uint64_t)kind.traffic << 24 |
           (uint64_t)kind.source << 27 | (uint64_t)kind.datatype << 29 |
           (uint64_t)kind.communicator << 37 | (uint64_t)kind.partner << 45 | (uint64_t)1 << 63;
}

#endif
