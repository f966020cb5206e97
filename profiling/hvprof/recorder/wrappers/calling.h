/* A call of an operation, and its arguments in each binding.
 *
 * Arguments are words, which are passed on as they came: every parameter of MPI's functions is an
 * integer or an address, so a word holds it whatever its type is, and each ABI of 64 bits passes it
 * alike. So buffers, statuses, strings with their lengths, and descriptors need no care.
 */
#ifndef HVPROF_CALLING_H
#define HVPROF_CALLING_H

#include "../mpi/fortran.h"
#include "../operation.h"

/* More than any function has, with the code of errors and lengths of strings. */
enum { WORDS = 16 };

struct calling {
    struct recorder *into;
    struct operation *operation;
    enum binding binding;
    void *caller;
    uint64_t *word;
    uint64_t begin_ns, end_ns;
    uint64_t polled_ns; /* when the call before this one ended, if it was a test that failed */
    MPI_Comm comm;
};

/* Tests in a loop that follow each other faster are a wait. */
#define POLLING_NS UINT64_C(2000000)
/* Other processes may take its core meanwhile, now and then. */
#define PREEMPTED_NS UINT64_C(30000000)
enum { QUICK_TESTS = 16 };
/* After that long, the thread is shown in the call until it does something else. */
#define LONG_POLLING_NS UINT64_C(100000000)
static _Thread_local uint64_t polled_ns;
/* The loop of tests that this thread is in, or was in last. */
static _Thread_local struct {
    struct operation *operation;
    uint64_t since_ns;
    unsigned quick; /* tests since the last that was slow to follow */
} polling;

static bool is_fortran(const struct calling *call)
{
    return call->binding >= FORTRAN;
}

static bool has_large_counts(enum binding binding)
{
    return binding == LARGE || binding >= F08_LARGE;
}

static void *address(const struct calling *call, int position)
{
    return (void *)(uintptr_t)call->word[position - 1];
}

static int integer(const struct calling *call, int position)
{
    uint64_t word = call->word[position - 1];
    return is_fortran(call) ? *(const int *)(uintptr_t)word : (int)word;
}

/* In an array of ints. */
static int integer_in(const struct calling *call, int position, int place)
{
    return ((const int *)address(call, position))[place];
}

static int64_t count_in(const struct calling *call, int position, int place)
{
    return has_large_counts(call->binding) ? ((const int64_t *)address(call, position))[place]
                                           : ((const int *)address(call, position))[place];
}

static int64_t count_at(const struct calling *call, int position)
{
    if (is_fortran(call))
        return count_in(call, position, 0);
    uint64_t word = call->word[position - 1];
    return has_large_counts(call->binding) ? (int64_t)word : (int)word;
}

/* A handle in an array, or one that MPI wrote. */
static handle handle_in(const struct calling *call, enum thing thing, int position, int place)
{
    if (!address(call, position))
        return 0; /* MPI's call says that it is invalid */
    return is_fortran(call) ? from_fortran(thing, integer_in(call, position, place))
                            : handle_at(address(call, position), (size_t)place);
}

static handle handle_of(const struct calling *call, enum thing thing, int position)
{
    return is_fortran(call) ? handle_in(call, thing, position, 0)
                            : passed(call->word[position - 1]);
}

/* Fortran's indices count from 1. */
static int index_in(const struct calling *call, int position, int place)
{
    return integer_in(call, position, place) - is_fortran(call);
}

static bool is_in_place(const struct calling *call)
{
    if (!call->operation->in_place)
        return false;
    const void *buffer = address(call, call->operation->in_place);
    if (!is_fortran(call))
        return (uintptr_t)buffer == abi.in_place;
    if (buffer && (call->binding == F08TS || call->binding == F08TS_LARGE ||
                   call->binding == F08TS_C))
        buffer = *(const void *const *)buffer; /* a descriptor begins with the address */
    return buffer && is_one_of(buffer, fortran.in_place, fortran.in_place_at);
}

static bool ignores_status(const struct calling *call, const void *status)
{
    return is_fortran(call)
               ? is_one_of(status, fortran.ignored_status, fortran.ignored_status_at)
               : (uintptr_t)status == abi.ignored_status;
}

/* Gives MPI a status to write, where the program ignores its. */
static void see_status(struct calling *call)
{
    static _Thread_local int own_status[STATUS_INTS];
    uint64_t *status = &call->word[call->operation->status - 1];
    if (ignores_status(call, (const void *)(uintptr_t)*status))
        *status = (uintptr_t)own_status;
}

/* The rank that a message came from; NO_PEER where it is not known. */
static int source(const struct calling *call)
{
    const void *status = address(call, call->operation->status);
    return status && !ignores_status(call, status) ? source_in(status) : NO_PEER;
}

/* Of the payload's elements, where they are known: MPI is asked, and arrays are read. */
static uint64_t payload_bytes(const struct calling *call, struct payload payload)
{
    int many = 1, other = 1;
    int64_t count = 0;
    uint64_t bytes = 0;
    bool typed = payload.times == TYPED || payload.times == TO_TYPED;
    if (!payload.type)
        return 0;
    MPI_Datatype type = typed ? abi.no_type : handle_of(call, DATATYPE, payload.type);
    switch ((enum times)payload.times) {
    case ONCE:
        return bytes_of(payload.count ? count_at(call, payload.count) : 1, type);
    case AT_ROOT:
        return bytes_of(count_in(call, payload.count, integer(call, call->operation->peer)), type);
    case PARTITIONS:
        return bytes_of(count_at(call, payload.count), type) *
               (uint64_t)integer(call, payload.count - 1);
    case RANKS:
        return bytes_of(count_at(call, payload.count), type) * (uint64_t)ranks_of(call->comm);
    case ELEMENTS:
    case TYPED:
        many = ranks_of(call->comm);
        break;
    case SOURCES:
    case FROM_EACH:
        count_neighbors(call->comm, &many, &other);
        break;
    case TO_EACH:
    case TO_TYPED:
        count_neighbors(call->comm, &other, &many);
        break;
    }
    if (payload.times == SOURCES)
        return bytes_of(count_at(call, payload.count), type) * (uint64_t)many;
    for (int i = 0; i < many && typed; i++)
        bytes += bytes_of(count_in(call, payload.count, i),
                          handle_in(call, DATATYPE, payload.type, i));
    for (int i = 0; i < many && !typed; i++)
        count += count_in(call, payload.count, i);
    return typed ? bytes : bytes_of(count, type);
}

static struct payload payload_of(const struct calling *call)
{
    return is_in_place(call) ? call->operation->in_place_payload : call->operation->payload;
}

/* A negative root is MPI_ROOT or MPI_PROC_NULL, between two groups: a gather or a scatter has
 * nothing of this rank then. */
static bool has_payload(const struct calling *call)
{
    const struct operation *operation = call->operation;
    return !(operation->in_place && operation->peer && integer(call, operation->peer) < 0);
}

static MPI_Datatype type_of(const struct calling *call, struct payload payload)
{
    return !payload.type || payload.times == TYPED || payload.times == TO_TYPED
               ? abi.no_type
               : handle_of(call, DATATYPE, payload.type);
}

#endif
