/* libhvprof.so: counts a program's MPI traffic when it is preloaded into it.
 *
 * Every MPI_X here calls the program's own PMPI_X, unchanged, and counts the call.
 * Build: mpicc -shared -fPIC -O2 -pthread -Wl,--as-needed pmpi.c -o libhvprof.so
 */
#define _GNU_SOURCE
#include "clocks.h"
#include "counting_messages.h"
#include "decision.h"
#include "files.h"
#include "jobs.h"
#include "registration_cache.h"
#include "run_usage.h"
#include "wrapping.h"

static _Atomic(struct recorder *) recorder;

/* --- The operations -------------------------------------------------------------------- */

ARRAYS(int, int)
#define C(name) MPI_##name
#define COUNT int
#define DISPLACEMENT int
#define WIDTH int
#include "operations.h"
COLLECTIVE(Barrier, barrier, (MPI_Comm comm), (comm), comm, mpi.no_type, 0)

#include "waits.h"

#if MPI_VERSION >= 4
ARRAYS(MPI_Count, count)
#undef C
#undef COUNT
#undef DISPLACEMENT
#undef WIDTH
#define C(name) MPI_##name##_c
#define COUNT MPI_Count
#define DISPLACEMENT MPI_Aint
#define WIDTH count
#include "operations.h"
#endif

/* --- Calls of the program itself ------------------------------------------------------- */

/* Called for each exchange of hvd_ext (hvd_ext/events.py); `start_s` and `ready_s` are on
 * CLOCK_MONOTONIC, 0 where they are unknown. */
EXPORT void hvprof_exchange(const char *operation, const char *algorithm, uint64_t message_bytes,
                            int size, double start_s, double wait_s, double transfer_s,
                            double ready_s)
{
    struct recorder *into = recorder;
    if (!into)
        return;
    uint64_t begin_ns = start_s > 0 ? (uint64_t)(start_s * 1e9) : 0;
    uint64_t wait_ns = wait_s > 0 ? (uint64_t)(wait_s * 1e9) : 0;
    uint64_t time_ns = wait_ns + (transfer_s > 0 ? (uint64_t)(transfer_s * 1e9) : 0);
    bool has_ready = ready_s > 0 && ready_s <= start_s && start_s - ready_s < 1000;
    uint32_t queued_us = has_ready ? 1 + (uint32_t)((start_s - ready_s) * 1e6) : 0;
    pthread_mutex_lock(&knowing);
    int communicator = shared_entry(into, size);
    pthread_mutex_unlock(&knowing);
    struct kind kind = {.operation = name_id(into, operation, NAMES),
                        .algorithm = name_id(into, algorithm, NAMES), .communicator = communicator,
                        .traffic = data_or_tuning(), .source = SOURCE_HVD_EXT};
    uint64_t key = cell_key(kind, message_bytes);
    uint32_t sequence = ++known[communicator].sequence;
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

EXPORT void hvprof_step(void)
{
    struct recorder *into = recorder;
    if (into)
        mark_step(into, clock_ns(CLOCK_MONOTONIC));
}

/* --- Communicators and types come and go ----------------------------------------------- */

#define CREATES(SYMBOL, SHOWN, PARAMETERS, ARGUMENTS)                                          \
    EXPORT int SYMBOL PARAMETERS                                                               \
    {                                                                                          \
        static struct operation self = {.symbol = "P" #SYMBOL, .name = SHOWN};                 \
        int(*real) PARAMETERS = function_of(&self);                                            \
        struct recorder *into = recorder;                                                      \
        if (into)                                                                              \
            enter_uncounted(into, &self, clock_ns(CLOCK_MONOTONIC), comm);                     \
        int code = real ARGUMENTS;                                                             \
        if (into)                                                                              \
            leave_call(into, clock_ns(CLOCK_MONOTONIC), code == MPI_SUCCESS);                  \
        if (into && code == MPI_SUCCESS)                                                       \
            comm_created(into, *made, comm);                                                   \
        return code;                                                                           \
    }

CREATES(MPI_Comm_dup, "comm_dup", (MPI_Comm comm, MPI_Comm *made), (comm, made))
CREATES(MPI_Comm_dup_with_info, "comm_dup_with_info",
        (MPI_Comm comm, MPI_Info info, MPI_Comm *made), (comm, info, made))
CREATES(MPI_Comm_split, "comm_split", (MPI_Comm comm, int color, int key, MPI_Comm *made),
        (comm, color, key, made))
CREATES(MPI_Comm_split_type, "comm_split_type",
        (MPI_Comm comm, int type, int key, MPI_Info info, MPI_Comm *made),
        (comm, type, key, info, made))
CREATES(MPI_Comm_create, "comm_create", (MPI_Comm comm, MPI_Group group, MPI_Comm *made),
        (comm, group, made))
CREATES(MPI_Comm_create_group, "comm_create_group",
        (MPI_Comm comm, MPI_Group group, int tag, MPI_Comm *made), (comm, group, tag, made))
CREATES(MPI_Cart_create, "cart_create",
        (MPI_Comm comm, int dims, const int *sizes, const int *periods, int reorder,
         MPI_Comm *made),
        (comm, dims, sizes, periods, reorder, made))
CREATES(MPI_Cart_sub, "cart_sub", (MPI_Comm comm, const int *remain, MPI_Comm *made),
        (comm, remain, made))

EXPORT int MPI_Comm_set_name(MPI_Comm comm, const char *name)
{
    int (*real)(MPI_Comm, const char *) = find("PMPI_Comm_set_name");
    int code = real(comm, name);
    if (recorder && code == MPI_SUCCESS)
        comm_named(recorder, comm, name);
    return code;
}

/* A handle may be given out again once its communicator or type is gone. */
#define FREES(SYMBOL, HANDLE, FORGET)                                                          \
    EXPORT int SYMBOL(HANDLE *gone)                                                            \
    {                                                                                          \
        int (*real)(HANDLE *) = find("P" #SYMBOL);                                             \
        FORGET;                                                                                \
        return real(gone);                                                                     \
    }
FREES(MPI_Comm_free, MPI_Comm, forget_comm(*gone))
FREES(MPI_Comm_disconnect, MPI_Comm, forget_comm(*gone))
FREES(MPI_Type_free, MPI_Datatype, forget_types())

EXPORT int MPI_Type_set_name(MPI_Datatype type, const char *name)
{
    int (*real)(MPI_Datatype, const char *) = find("PMPI_Type_set_name");
    forget_types();
    return real(type, name);
}

/* --- Beginning and end ----------------------------------------------------------------- */

static void stop_in_child(void)
{
    recorder = NULL; /* the files are the parent's */
    forget_slot();
}

/* Whether Open MPI was set to yield the core where it waits; its default where ranks share one. */
static bool asked_to_yield(void)
{
    const char *wanted = getenv("OMPI_MCA_mpi_yield_when_idle");
    const char *shared = wanted ? wanted : getenv("OMPI_MCA_mpi_oversubscribe");
    return shared && *shared && strcmp(shared, "0");
}

static void start(void)
{
    const char *directory = getenv("HVPROF_DIR"), *traced = getenv("HVPROF_TRACE");
    uint64_t events = traced ? strtoull(traced, NULL, 10) : 0;
    char library[MPI_MAX_LIBRARY_VERSION_STRING] = "", clock[64] = "";
    struct offset offset = {0};
    int rank, size, length;
    if (!directory || !*directory)
        return;
    find_mpi();
    mpi.comm_rank(mpi.world, &rank);
    mpi.comm_size(mpi.world, &size);
    const char *folder = find_job(directory, rank, size);
    if (!folder)
        return;
    name_clock(clock, sizeof clock);
    struct recorder *made = create_recorder(folder, rank, size, events);
    clocks_are_compared = events > 0 && size > 1 &&
                          all_have_traces(folder, rank, size, made && made->trace,
                                          FILES_WITHIN_MS);
    if (clocks_are_compared) {
        mpi.comm_dup(mpi.world, &clock_comm);
        offset = compare_clocks(clock);
    }
    if (!made)
        return;
    mpi.get_library_version(library, &length);
    library[strcspn(library, "\n")] = '\0';
    snprintf(made->file->library, sizeof made->file->library, "%s", library);
    snprintf(made->file->clock, sizeof made->file->clock, "%s", clock);
    made->file->offsets[0] = offset;
    made->file->yields = asked_to_yield();
    prepare_slots();
    made->file->cost_ns = own_cost_ns(made);
    pthread_atfork(NULL, NULL, stop_in_child);
    begin_run();
    recorder = made;
}

EXPORT int MPI_Init(int *argc, char ***argv)
{
    int (*real)(int *, char ***) = find("PMPI_Init");
    int code = real(argc, argv);
    if (code == MPI_SUCCESS)
        start();
    return code;
}

EXPORT int MPI_Init_thread(int *argc, char ***argv, int required, int *provided)
{
    int (*real)(int *, char ***, int, int *) = find("PMPI_Init_thread");
    int code = real(argc, argv, required, provided);
    if (code == MPI_SUCCESS)
        start();
    return code;
}

EXPORT int MPI_Finalize(void)
{
    static struct operation self = {.symbol = "PMPI_Finalize", .name = "finalize"};
    int (*real)(void) = function_of(&self);
    struct recorder *into = recorder;
    if (clocks_are_compared) {
        char clock[64];
        name_clock(clock, sizeof clock);
        struct offset offset = compare_clocks(clock);
        mpi.comm_free(&clock_comm);
        clocks_are_compared = false;
        if (into)
            into->file->offsets[1] = offset;
    }
    if (into) {
        read_registration_cache(into->file);
        end_run(into->file);
    }
    uint64_t begin_ns = clock_ns(CLOCK_MONOTONIC);
    if (into)
        enter_uncounted(into, &self, begin_ns, mpi.world);
    int code = real();
    if (into)
        into->file->usage.finalize_ns = clock_ns(CLOCK_MONOTONIC) - begin_ns;
    close_recording(into, FINALIZED);
    return code;
}

__attribute__((destructor)) static void leave(void)
{
    close_recording(recorder, EXITED);
}
