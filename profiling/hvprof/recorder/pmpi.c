/* libhvprof.so: counts a program's MPI traffic when it is preloaded into it.
 *
 * Every function of MPI here calls the program's own one, unchanged, and counts the call.
 * Build: cc -shared -fPIC -O2 -pthread pmpi.c -o libhvprof.so
 */
#define _GNU_SOURCE
#include "beat.h"
#include "mpi/clocks.h"
#include "decision.h"
#include "files.h"
#include "jobs.h"
#include "mpi/registration_cache.h"
#include "run_usage.h"
#include "wrappers/cost.h"

#include "reported.h"

/* --- Beginning and end ----------------------------------------------------------------- */

static void stop_in_child(void)
{
    recorder = NULL; /* the files are the parent's */
    unlock(&usage_lock); /* which another thread may have held */
    atomic_store(&leading, false);
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

static bool find_ranks_of_session(const struct calling *session, int *rank, int *size)
{
    int (*group_of)(handle, const char *, handle *) = find("PMPI_Group_from_session_pset");
    if (!group_of || group_of(handle_in(session, SESSION, 3, 0), "mpi://WORLD", &mpi.session_world))
        return false;
    mpi.group_rank(handle_at(&mpi.session_world, 0), rank);
    mpi.group_size(handle_at(&mpi.session_world, 0), size);
    return true;
}

/* `session`: the call that has made a session, NULL where all of MPI was started. */
static void start(const struct calling *session)
{
    const char *directory = recordings_folder();
    uint64_t events = traced_events();
    static char library[VERSION_ROOM];
    char clock[64] = "", name[JOB_NAME_BYTES], why[160];
    static bool asked;
    struct offset offset = {0};
    int rank, size;
    if (!directory || asked)
        return;
    asked = true;
    if (!find_mpi(library, why, sizeof why)) {
        /* For `hvprof record`, which says it once; other ranks may have done so. */
        snprintf(name, sizeof name, "%.400s/" STRANGE_MPI, directory);
        if (symlink(why, name) && errno != EEXIST)
            fprintf(stderr, "hvprof: not recorded: %s\n", why);
        return;
    }
    find_fortran();
    find_late();
    if (recorder)
        return; /* torch.distributed began before */
    if (session && !find_ranks_of_session(session, &rank, &size))
        return;
    if (!session) {
        mpi.comm_rank(abi.world, &rank);
        mpi.comm_size(abi.world, &size);
    }
    name_job(name, size);
    const char *folder = find_job(directory, name, rank, size);
    if (!folder)
        return;
    name_clock(clock, sizeof clock);
    struct recorder *made = create_recorder(folder, rank, size, events);
    clocks_are_compared = events > 0 && size > 1 && !session &&
                          all_have_traces(folder, rank, size, made && made->trace,
                                          FILES_WITHIN_MS);
    if (clocks_are_compared) {
        mpi.comm_dup(abi.world, &clock_comm);
        offset = compare_clocks(clock);
    }
    if (!made)
        return;
    snprintf(made->file->library, sizeof made->file->library, "%.*s",
             (int)sizeof made->file->library - 1, library);
    snprintf(made->file->clock, sizeof made->file->clock, "%s", clock);
    open_sites(made, folder);
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
    open_sites(made, folder);
    prepare_slots();
    begin(made);
}

/* Such a job has ended; to record a call of it took `cost_ns`. MPI_Finalize ends a job of MPI. */
EXPORT void hvprof_end(double cost_ns)
{
    struct recorder *into = recorder;
    if (!into || mpi.found)
        return;
    into->file->cost_ns = cost_ns;
    end_run(into->file);
    close_recording(into, FINALIZED);
}

/* A job that starts MPI by sessions alone is recorded for as long as its first one lasts. */
static handle first_session;

static uint64_t call_session_init(struct operation *operation, enum binding binding, uint64_t *word)
{
    struct calling call = {.operation = operation, .binding = binding, .word = word};
    uint64_t result = call_with(function_of(operation, binding), word);
    const int *code = (const int *)(uintptr_t)word[operation->arguments];
    if (recorder || is_within_mpi(__builtin_frame_address(0)) ||
        (binding == C ? (int)result : code && *code) != MPI_SUCCESS)
        return result;
    start(&call);
    if (mpi.session_world)
        first_session = handle_in(&call, SESSION, 3, 0);
    return result;
}

static uint64_t call_session_finalize(struct operation *operation, enum binding binding,
                                      uint64_t *word)
{
    struct calling call = {.operation = operation, .binding = binding, .word = word};
    struct recorder *into = recorder;
    if (first_session && handle_in(&call, SESSION, 1, 0) == first_session) {
        mpi.group_free(&mpi.session_world);
        first_session = 0;
        recorder = NULL;
        if (into) {
            end_run(into->file);
            close_recording(into, FINALIZED);
        }
    }
    return call_with(function_of(operation, binding), word);
}

/* MPI_Init and MPI_Init_thread, whose first two arguments Fortran leaves out. */
static void start_after(struct operation *operation, enum binding binding, uint64_t result,
                        const uint64_t *word)
{
    int place = operation->arguments - 2 * (binding != C);
    const int *code = binding == C ? NULL : (const int *)(uintptr_t)word[place];
    if (binding == C ? (int)result == MPI_SUCCESS : !code || *code == MPI_SUCCESS)
        start(NULL);
}

static uint64_t call_init(struct operation *operation, enum binding binding, uint64_t *word)
{
    uint64_t result = call_with(function_of(operation, binding), word);
    start_after(operation, binding, result, word);
    return result;
}

static uint64_t call_finalize(struct operation *operation, enum binding binding, uint64_t *word)
{
    struct recorder *into = recorder;
    void *function = function_of(operation, binding);
    if (is_within_mpi(__builtin_frame_address(0)))
        return call_with(function, word);
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
    entered = __builtin_frame_address(0);
    uint64_t begin_ns = clock_ns(CLOCK_MONOTONIC);
    if (into && mpi.found)
        enter_uncounted(into, operation, begin_ns, abi.world);
    uint64_t result = call_with(function, word);
    entered = NULL;
    if (into)
        into->file->usage.finalize_ns = clock_ns(CLOCK_MONOTONIC) - begin_ns;
    close_recording(into, FINALIZED);
    return result;
}

/* MPI_Pcontrol(0) to leave calls out from here on, and 1 to count them again, as mpiP has it. */
static uint64_t call_pcontrol(struct operation *operation, enum binding binding, uint64_t *word)
{
    struct calling call = {.binding = binding, .word = word};
    int level = integer(&call, 1);
    if (level == 0 || level == 1)
        atomic_store_explicit(&left_out, !level, memory_order_relaxed);
    return call_with(function_of(operation, binding), word);
}

#define BOUND(SCOPE, SYMBOL, Name, low, NAME, ARGUMENTS, CALLS)                               \
    static struct operation of_##low = {.symbol = #Name, .lower = #low, .name = #low,       \
                                         .arguments = ARGUMENTS};                              \
    SCOPE uint64_t SYMBOL(PARAMETERS)                                                          \
    {                                                                                          \
        return CALLS(&of_##low, C, GIVEN);                                                    \
    }                                                                                          \
    EXPORT uint64_t mpi_##low##_(PARAMETERS)                                                  \
    {                                                                                          \
        return CALLS(&of_##low, FORTRAN, GIVEN);                                              \
    }                                                                                          \
    EXPORT uint64_t mpi_##low##_f08_(PARAMETERS)                                              \
    {                                                                                          \
        return CALLS(&of_##low, F08, GIVEN);                                                  \
    }                                                                                          \
    ALSO(mpi_##low##__, mpi_##low##_)                                                        \
    ALSO(mpi_##low, mpi_##low##_)                                                            \
    ALSO(MPI_##NAME, mpi_##low##_)
BOUND(EXPORT, MPI_Init, Init, init, INIT, 2, call_init)
BOUND(EXPORT, MPI_Init_thread, Init_thread, init_thread, INIT_THREAD, 4, call_init)
BOUND(EXPORT, MPI_Pcontrol, Pcontrol, pcontrol, PCONTROL, 1, call_pcontrol)
BOUND(EXPORT, MPI_Finalize, Finalize, finalize, FINALIZE, 0, call_finalize)
WITH(BOUND, RECENT_ENTRY(Session_init, session_init), Session_init, session_init, SESSION_INIT, 3, call_session_init)
WITH(BOUND, RECENT_ENTRY(Session_finalize, session_finalize), Session_finalize, session_finalize, SESSION_FINALIZE, 1,
      call_session_finalize)

/* A program that is linked with MPI may begin with a session. */
__attribute__((constructor)) static void prepare(void)
{
#ifndef LINKED_RECORDER
    if (recordings_folder() && dlsym(RTLD_DEFAULT, "PMPI_Comm_rank"))
        find_late();
#endif
}

__attribute__((destructor)) static void leave(void)
{
    if (recorder && atomic_load(&recorder->file->state) == RUNNING)
        end_run(recorder->file);
    close_recording(recorder, EXITED);
}

#ifdef LINKED_RECORDER
/* For hvprof.h, which cannot ask the linker of a static program. */
EXPORT const struct {
    int asked;
    void (*region_begin)(const char *name, int kind);
    void (*region_end)(void);
    void (*step)(void);
} hvprof_linked_recorder = {1, hvprof_region_begin, hvprof_region_end, hvprof_step};
#endif
