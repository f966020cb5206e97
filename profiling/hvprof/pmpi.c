/* libhvprof.so: counts a program's MPI traffic when it is preloaded into it.
 *
 * Every MPI_X here calls the program's own PMPI_X, unchanged, and counts the call. That
 * function is looked up at run time and libmpi is not linked, because the preload reaches
 * every process of a job (shells, launchers, python), most of which have no MPI.
 * Build: mpicc -shared -fPIC -O2 -Wl,--as-needed pmpi.c -o libhvprof.so
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <mpi.h>

#include "recorder.h"

#define CALLER __builtin_return_address(0)
#define EXPORT __attribute__((visibility("default")))

static _Atomic(struct recording *) recording;

/* What is needed of the program's MPI, found when it starts. */
static struct {
    int (*comm_rank)(MPI_Comm, int *);
    int (*comm_size)(MPI_Comm, int *);
    int (*comm_remote_size)(MPI_Comm, int *);
    int (*comm_test_inter)(MPI_Comm, int *);
    int (*type_size)(MPI_Datatype, int *);
    int (*type_get_name)(MPI_Datatype, char *, int *);
    int (*get_library_version)(char *, int *);
    MPI_Comm world;
    MPI_Datatype byte, no_type;
} mpi;

/* Open MPI's predefined handles are addresses within libmpi; others' are numbers. */
#ifdef OPEN_MPI
#define PREDEFINED(symbol, constant) find(symbol)
#else
#define PREDEFINED(symbol, constant) constant
#endif

/* Python loads its extension modules, and libmpi with them, into scopes of their own,
 * which dlsym(RTLD_DEFAULT) does not see: one that has an MPI is looked for. */
static void *mpi_scope(void)
{
    struct link_map *library = NULL;
    dlinfo(dlopen(NULL, RTLD_LAZY), RTLD_DI_LINKMAP, &library);
    for (; library; library = library->l_next) {
        void *scope = dlopen(library->l_name, RTLD_LAZY | RTLD_NOLOAD);
        if (scope && dlsym(scope, "PMPI_Init"))
            return scope;
        if (scope)
            dlclose(scope);
    }
    return NULL;
}

static void *find(const char *symbol)
{
    static _Atomic(void *) scope;
    void *found = dlsym(RTLD_DEFAULT, symbol);
    if (!found && !scope)
        scope = mpi_scope();
    if (!found && scope)
        found = dlsym(scope, symbol);
    if (!found) {
        fprintf(stderr, "hvprof: error: the program's MPI has no %s: libhvprof.so was built "
                        "for another MPI, build it with the one in use\n", symbol);
        abort();
    }
    return found;
}

/* --- Which traffic a call belongs to --------------------------------------------------- */

/* The communicators that hvd_ext named as its own. */
static _Atomic uintptr_t transports[64];
static _Atomic int transports_end;

static bool is_transport(MPI_Comm comm)
{
    int end = atomic_load_explicit(&transports_end, memory_order_relaxed);
    for (int i = 0; i < end; i++)
        if (atomic_load_explicit(&transports[i], memory_order_relaxed) == (uintptr_t)comm)
            return true;
    return false;
}

static void forget_transport(MPI_Comm comm)
{
    for (int i = 0; i < transports_end; i++) {
        uintptr_t known = (uintptr_t)comm;
        atomic_compare_exchange_strong(&transports[i], &known, 0);
    }
}

static void remember_transport(MPI_Comm comm)
{
    const int slots = sizeof transports / sizeof *transports;
    for (int i = 0; i < slots; i++) {
        uintptr_t unused = 0;
        if (atomic_compare_exchange_strong(&transports[i], &unused, (uintptr_t)comm)) {
            int end = transports_end;
            while (end <= i && !atomic_compare_exchange_weak(&transports_end, &end, i + 1))
                ;
            return;
        }
    }
}

/* Asking the linker takes about a microsecond, so each place in the code is asked once. */
static bool called_by_horovod(void *caller)
{
    static _Atomic uint64_t known[256];
    uint64_t address = (uintptr_t)caller;
    _Atomic uint64_t *slot = &known[(address ^ address >> 8) % 256];
    uint64_t entry = atomic_load_explicit(slot, memory_order_relaxed);
    if (entry >> 1 != address) {
        Dl_info library;
        bool yes = dladdr(caller, &library) && library.dli_fname &&
                   strstr(library.dli_fname, "/horovod/") && strstr(library.dli_fname, "/mpi_lib");
        entry = address << 1 | yes;
        atomic_store_explicit(slot, entry, memory_order_relaxed);
    }
    return entry & 1;
}

/* Horovod's controller sends lengths (MPI_INT), messages (MPI_BYTE), bit vectors
 * (MPI_LONG_LONG_INT) and barriers (no type). Its tensors have types of fixed width
 * (MPI_INT64_T), floating types, or a type of Horovod's own. */
static bool is_control_type(MPI_Datatype type)
{
    char name[MPI_MAX_OBJECT_NAME] = "";
    int length;
    if (type == mpi.no_type)
        return true;
    mpi.type_get_name(type, name, &length);
    return !strcmp(name, "MPI_INT") || !strcmp(name, "MPI_BYTE") ||
           !strncmp(name, "MPI_LONG_LONG", 13);
}

static enum traffic classify(MPI_Comm comm, MPI_Datatype type, void *caller)
{
    if (is_transport(comm))
        return TRANSPORT;
    return called_by_horovod(caller) && is_control_type(type) ? CONTROL : DATA;
}

/* --- How many bytes a call moves ------------------------------------------------------- */

static int ranks_of(MPI_Comm comm)
{
    int inter = 0, ranks = 0;
    mpi.comm_test_inter(comm, &inter);
    (inter ? mpi.comm_remote_size : mpi.comm_size)(comm, &ranks);
    return ranks;
}

static uint64_t bytes_of(int64_t count, MPI_Datatype type)
{
    int bytes = 0;
    if (count > 0 && type != mpi.no_type)
        mpi.type_size(type, &bytes);
    return bytes > 0 ? (uint64_t)count * (uint64_t)bytes : 0;
}

/* --- Counting -------------------------------------------------------------------------- */

struct operation {
    const char *symbol, *name;
    _Atomic(void *) function;
    _Atomic int id;
};

static void *function_of(struct operation *operation)
{
    void *function = atomic_load_explicit(&operation->function, memory_order_relaxed);
    if (!function)
        operation->function = function = find(operation->symbol);
    return function;
}

static void count_call(struct recording *into, struct operation *operation, uint64_t begin_ns,
                       uint64_t end_ns, MPI_Comm comm, MPI_Datatype type, uint64_t bytes,
                       void *caller)
{
    if (!operation->id)
        operation->id = name_id(into, operation->name);
    uint64_t key = cell_key(operation->id, NATIVE, classify(comm, type, caller), SOURCE_MPI,
                            ranks_of(comm), bytes);
    count(into, key, bytes, end_ns - begin_ns, 0);
}

/* Each operation is one of these: call the program's MPI, then count what it did. */
#define WRAP(SYMBOL, SHOWN, PARAMETERS, ARGUMENTS, COMM, TYPE, BYTES)                          \
    EXPORT int SYMBOL PARAMETERS                                                               \
    {                                                                                          \
        static struct operation self = {.symbol = "P" TEXT(SYMBOL), .name = SHOWN};            \
        int(*real) PARAMETERS = function_of(&self);                                    \
        struct recording *into = recording;                                                    \
        if (!into)                                                                             \
            return real ARGUMENTS;                                                             \
        uint64_t begin_ns = clock_ns(CLOCK_MONOTONIC);                                         \
        int code = real ARGUMENTS;                                                             \
        uint64_t end_ns = clock_ns(CLOCK_MONOTONIC);                                           \
        if (code == MPI_SUCCESS)                                                               \
            count_call(into, &self, begin_ns, end_ns, COMM, TYPE, BYTES, CALLER);              \
        return code;                                                                           \
    }

/* A blocking collective and its non-blocking twin. */
#define COLLECTIVE(NAME, name, PARAMETERS, ARGUMENTS, COMM, TYPE, BYTES)                       \
    WRAP(C(NAME), #name, (UNPACK PARAMETERS), (UNPACK ARGUMENTS), COMM, TYPE, BYTES)           \
    WRAP(C(I##name), "i" #name, (UNPACK PARAMETERS, MPI_Request *request),                     \
         (UNPACK ARGUMENTS, request), COMM, TYPE, BYTES)

#define UNPACK(...) __VA_ARGS__
#define TEXT(symbol) TEXT_OF(symbol)
#define TEXT_OF(symbol) #symbol

static uint64_t sum_int(const int *counts, MPI_Comm comm)
{
    uint64_t sum = 0;
    for (int i = 0, ranks = ranks_of(comm); i < ranks; i++)
        sum += (uint64_t)counts[i];
    return sum;
}
#define C(name) MPI_##name
#define COUNT int
#define DISPLACEMENT int
#define SUM sum_int
#include "operations.h"
COLLECTIVE(Barrier, barrier, (MPI_Comm comm), (comm), comm, mpi.no_type, 0)

#if MPI_VERSION >= 4
static uint64_t sum_count(const MPI_Count *counts, MPI_Comm comm)
{
    uint64_t sum = 0;
    for (int i = 0, ranks = ranks_of(comm); i < ranks; i++)
        sum += (uint64_t)counts[i];
    return sum;
}
#undef C
#undef COUNT
#undef DISPLACEMENT
#undef SUM
#define C(name) MPI_##name##_c
#define COUNT MPI_Count
#define DISPLACEMENT MPI_Aint
#define SUM sum_count
#include "operations.h"
#endif

/* What hvd_ext tells of each of its own exchanges (hvd_ext/events.py). */
EXPORT void hvprof_event(const char *operation, const char *algorithm, uint64_t message_bytes,
                         int size, double wait_s, double transfer_s)
{
    struct recording *into = recording;
    if (!into)
        return;
    uint64_t wait_ns = wait_s > 0 ? (uint64_t)(wait_s * 1e9) : 0;
    uint64_t transfer_ns = transfer_s > 0 ? (uint64_t)(transfer_s * 1e9) : 0;
    uint64_t key = cell_key(name_id(into, operation), name_id(into, algorithm), DATA,
                            SOURCE_HVD_EXT, size, message_bytes);
    count(into, key, message_bytes, wait_ns + transfer_ns, wait_ns);
}

/* --- Beginning and end ----------------------------------------------------------------- */

/* Everything that a wrapper adds to a call, timed on a recording that is thrown away. */
static double own_cost_ns(void)
{
    enum { BATCHES = 10, CALLS = 1000 };
    struct recording *scratch = calloc(1, sizeof *scratch);
    struct operation operation = {.name = "calibration"};
    uint64_t best_ns = UINT64_MAX;
    if (!scratch)
        return 0;
    for (int batch = 0; batch < BATCHES; batch++) {
        uint64_t start_ns = clock_ns(CLOCK_MONOTONIC);
        for (int call = 0; call < CALLS; call++) {
            uint64_t begin_ns = clock_ns(CLOCK_MONOTONIC), end_ns = clock_ns(CLOCK_MONOTONIC);
            count_call(scratch, &operation, begin_ns, end_ns, mpi.world, mpi.byte,
                       bytes_of(8, mpi.byte), CALLER);
        }
        uint64_t took_ns = clock_ns(CLOCK_MONOTONIC) - start_ns;
        best_ns = took_ns < best_ns ? took_ns : best_ns;
    }
    free(scratch);
    return (double)best_ns / CALLS;
}

static void start(void)
{
    const char *directory = getenv("HVPROF_DIR");
    char library[MPI_MAX_LIBRARY_VERSION_STRING] = "";
    int rank, size, length;
    if (!directory || !*directory)
        return;
    mpi.comm_rank = find("PMPI_Comm_rank");
    mpi.comm_size = find("PMPI_Comm_size");
    mpi.comm_remote_size = find("PMPI_Comm_remote_size");
    mpi.comm_test_inter = find("PMPI_Comm_test_inter");
    mpi.type_size = find("PMPI_Type_size");
    mpi.type_get_name = find("PMPI_Type_get_name");
    mpi.get_library_version = find("PMPI_Get_library_version");
    mpi.world = PREDEFINED("ompi_mpi_comm_world", MPI_COMM_WORLD);
    mpi.byte = PREDEFINED("ompi_mpi_byte", MPI_BYTE);
    mpi.no_type = PREDEFINED("ompi_mpi_datatype_null", MPI_DATATYPE_NULL);
    mpi.comm_rank(mpi.world, &rank);
    mpi.comm_size(mpi.world, &size);
    struct recording *made = create_recording(directory, rank, size);
    if (!made)
        return;
    mpi.get_library_version(library, &length);
    library[strcspn(library, "\n")] = '\0';
    snprintf(made->library, sizeof made->library, "%s", library);
    made->cost_ns = own_cost_ns();
    recording = made;
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
    int (*real)(void) = find("PMPI_Finalize");
    int code = real();
    close_recording(recording, FINALIZED);
    return code;
}

__attribute__((destructor)) static void leave(void)
{
    close_recording(recording, EXITED);
}

EXPORT int MPI_Comm_set_name(MPI_Comm comm, const char *name)
{
    int (*real)(MPI_Comm, const char *) = find("PMPI_Comm_set_name");
    int code = real(comm, name);
    if (code == MPI_SUCCESS) {
        forget_transport(comm);
        if (!strncmp(name, "hvd_ext", 7))
            remember_transport(comm);
    }
    return code;
}

/* A handle may be given out again once its communicator is gone. */
EXPORT int MPI_Comm_free(MPI_Comm *comm)
{
    int (*real)(MPI_Comm *) = find("PMPI_Comm_free");
    forget_transport(*comm);
    return real(comm);
}

EXPORT int MPI_Comm_disconnect(MPI_Comm *comm)
{
    int (*real)(MPI_Comm *) = find("PMPI_Comm_disconnect");
    forget_transport(*comm);
    return real(comm);
}
