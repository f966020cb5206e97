/* libhvprof.so: counts a program's MPI traffic when it is preloaded into it.
 *
 * Every MPI_X here calls the program's own PMPI_X, unchanged, and counts the call.
 * Build: mpicc -shared -fPIC -O2 -pthread -Wl,--as-needed pmpi.c -o libhvprof.so
 */
#define _GNU_SOURCE
#include "beat.h"
#include "mpi/clocks.h"
#include "counting/counting_messages.h"
#include "decision.h"
#include "files.h"
#include "jobs.h"
#include "mpi/registration_cache.h"
#include "run_usage.h"
#include "wrappers/wrapping.h"

/* --- The operations -------------------------------------------------------------------- */

ARRAYS(int, int)
#define C(name) MPI_##name
#define COUNT int
#define DISPLACEMENT int
#define WIDTH int
#include "wrappers/operations.h"
COLLECTIVE(Barrier, barrier, (MPI_Comm comm), (comm), comm, mpi.no_type, 0)

#include "wrappers/waits.h"

#include "reported.h"

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
#include "wrappers/operations.h"
#endif

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

static void begin(struct recorder *made)
{
    pthread_atfork(NULL, NULL, stop_in_child);
    begin_run();
    recorder = made;
    start_beating(made);
}

static const char *recordings_folder(void)
{
    const char *directory = getenv("HVPROF_DIR");
    return directory && *directory ? directory : NULL;
}

static uint64_t traced_events(void)
{
    const char *traced = getenv("HVPROF_TRACE");
    return traced ? strtoull(traced, NULL, 10) : 0;
}

static void start(void)
{
    const char *directory = recordings_folder();
    uint64_t events = traced_events();
    char library[MPI_MAX_LIBRARY_VERSION_STRING] = "", clock[64] = "", name[JOB_NAME_BYTES];
    struct offset offset = {0};
    int rank, size, length;
    if (!directory)
        return;
    find_mpi();
    if (recorder)
        return; /* torch.distributed began before */
    mpi.comm_rank(mpi.world, &rank);
    mpi.comm_size(mpi.world, &size);
    name_job(name, size);
    const char *folder = find_job(directory, name, rank, size);
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
    begin(made);
}

/* A job of torch.distributed, whose ranks have not started MPI by now. `library` describes it. */
EXPORT void hvprof_begin(int rank, int size, const char *library)
{
    const char *directory = recordings_folder();
    char name[JOB_NAME_BYTES];
    if (!directory || recorder)
        return;
    name_torch_job(name, size);
    const char *folder = find_job(directory, name, rank, size);
    struct recorder *made = folder ? create_recorder(folder, rank, size, traced_events()) : NULL;
    if (!made)
        return;
    snprintf(made->file->library, sizeof made->file->library, "%s", library);
    name_clock(made->file->clock, sizeof made->file->clock);
    prepare_slots();
    begin(made);
}

/* Such a job has ended; to record a call of it took `cost_ns`. MPI_Finalize ends a job of MPI. */
EXPORT void hvprof_end(double cost_ns)
{
    struct recorder *into = recorder;
    if (!into || mpi.world)
        return;
    into->file->cost_ns = cost_ns;
    end_run(into->file);
    close_recording(into, FINALIZED);
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
