/* The wrapper of an operation, of which operations.h has the list. */
#ifndef HVPROF_WRAPPING_H
#define HVPROF_WRAPPING_H

#include "../counting/counting_messages.h"
#include "../current.h"

/* Each operation is one of these: call the program's MPI, then count what it did. */
#define WRAP(SYMBOL, SHOWN, PARAMETERS, ARGUMENTS, ENTER_IT, COUNT_IT)                         \
    EXPORT int SYMBOL PARAMETERS                                                               \
    {                                                                                          \
        static struct operation self = {.symbol = "P" TEXT(SYMBOL), .name = SHOWN};            \
        int(*real) PARAMETERS = function_of(&self);                                            \
        struct recorder *into = recorder;                                                      \
        if (!into)                                                                             \
            return real ARGUMENTS;                                                             \
        uint64_t begin_ns = clock_ns(CLOCK_MONOTONIC);                                         \
        ENTER_IT;                                                                              \
        int code = real ARGUMENTS;                                                             \
        uint64_t end_ns = clock_ns(CLOCK_MONOTONIC);                                           \
        leave_call(into, end_ns, code == MPI_SUCCESS);                                         \
        if (code == MPI_SUCCESS)                                                               \
            COUNT_IT;                                                                          \
        return code;                                                                           \
    }

#define CALL(COMM, TYPE, BYTES, PEER, TAG, COLLECTIVE, DIRECTION, REQUEST)                     \
    count_call(into, &self, begin_ns, end_ns,                                                  \
               (struct call){COMM, TYPE, BYTES, PEER, TAG, COLLECTIVE, CALLER, DIRECTION, REQUEST})

#define PLAIN enter_plain(into, &self, begin_ns)

/* The functions that BYTES calls ask MPI, and read arrays. Before the call, others take their
 * names, which do neither. */
#define ENTER(COMM, TYPE, BYTES, PEER, COLLECTIVE)                                             \
    do {                                                                                       \
        uint64_t (*bytes_of)(int64_t, MPI_Datatype) = bytes_before;                            \
        int (*ranks_of)(MPI_Comm) = ranks_before;                                              \
        uint64_t (*SUM)(const COUNT *, MPI_Comm) = JOINED(no_sum_, WIDTH);                     \
        uint64_t (*BYTES_OF_ALL)(const COUNT *, const MPI_Datatype *, MPI_Comm) =              \
            JOINED(no_bytes_of_all_, WIDTH);                                                   \
        int64_t (*AT)(const COUNT *, int) = JOINED(not_at_, WIDTH);                            \
        (void)bytes_of, (void)ranks_of, (void)SUM, (void)BYTES_OF_ALL, (void)AT;               \
        enter_communicator(into, COMM);                                                        \
        enter(into, &self, begin_ns, (struct entering){TYPE, BYTES, PEER, COLLECTIVE, CALLER}); \
    } while (0)

#include "message_wrappers.h"

/* A blocking collective and its non-blocking twin. */
#define ROOTED(NAME, name, PARAMETERS, ARGUMENTS, COMM, TYPE, BYTES, ROOT)                     \
    WRAP(C(NAME), #name, (UNPACK PARAMETERS), (UNPACK ARGUMENTS),                              \
         ENTER(COMM, TYPE, BYTES, ROOT, true),                                                 \
         CALL(COMM, TYPE, BYTES, ROOT, NO_TAG, true, NO_DIRECTION, NULL))                      \
    WRAP(C(I##name), "i" #name, (UNPACK PARAMETERS, MPI_Request *request),                     \
         (UNPACK ARGUMENTS, request), ENTER(COMM, TYPE, BYTES, ROOT, true),                    \
         CALL(COMM, TYPE, BYTES, ROOT, NO_TAG, true, NO_DIRECTION, request))

#define COLLECTIVE(NAME, name, PARAMETERS, ARGUMENTS, COMM, TYPE, BYTES)                       \
    ROOTED(NAME, name, PARAMETERS, ARGUMENTS, COMM, TYPE, BYTES, NO_PEER)

#define UNPACK(...) __VA_ARGS__
#define TEXT(symbol) TEXT_OF(symbol)
#define TEXT_OF(symbol) #symbol
#define JOINED(name, width) JOINED_OF(name, width)
#define JOINED_OF(name, width) name##width
#define SUM JOINED(sum_, WIDTH)
#define BYTES_OF_ALL JOINED(bytes_of_all_, WIDTH)
#define AT JOINED(at_, WIDTH)

/* The sum of an array of counts, one for each rank, also with a type for each, and one of them. */
#define ARRAYS(COUNT, WIDTH)                                                                   \
    static uint64_t sum_##WIDTH(const COUNT *counts, MPI_Comm comm)                            \
    {                                                                                          \
        uint64_t sum = 0;                                                                      \
        for (int i = 0, ranks = ranks_of(comm); i < ranks; i++)                                \
            sum += (uint64_t)counts[i];                                                        \
        return sum;                                                                            \
    }                                                                                          \
    static uint64_t bytes_of_all_##WIDTH(const COUNT *counts, const MPI_Datatype *types,       \
                                         MPI_Comm comm)                                        \
    {                                                                                          \
        uint64_t bytes = 0;                                                                    \
        for (int i = 0, ranks = ranks_of(comm); i < ranks; i++)                                \
            bytes += bytes_of(counts[i], types[i]);                                            \
        return bytes;                                                                          \
    }                                                                                          \
    static int64_t at_##WIDTH(const COUNT *counts, int place)                                  \
    {                                                                                          \
        return counts[place];                                                                  \
    }                                                                                          \
    static uint64_t no_sum_##WIDTH(const COUNT *counts, MPI_Comm comm)                         \
    {                                                                                          \
        return (void)counts, (void)comm, 0;                                                    \
    }                                                                                          \
    static uint64_t no_bytes_of_all_##WIDTH(const COUNT *counts, const MPI_Datatype *types,    \
                                            MPI_Comm comm)                                     \
    {                                                                                          \
        return (void)counts, (void)types, (void)comm, 0;                                       \
    }                                                                                          \
    static int64_t not_at_##WIDTH(const COUNT *counts, int place)                              \
    {                                                                                          \
        return (void)counts, (void)place, 0;                                                   \
    }

#endif
