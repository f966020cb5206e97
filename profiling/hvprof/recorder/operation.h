/* An operation of MPI: where its arguments are, and what its wrapper does with them. */
#ifndef HVPROF_OPERATION_H
#define HVPROF_OPERATION_H

#include <string.h>

#include "counting/cells.h"
#include "mpi/library.h"

#define CALLER __builtin_return_address(0)

/* The ways to call an operation. `use mpi_f08` has descriptors of buffers (TS) on MPICH, whose
 * names for large counts have changed. */
enum binding { C, LARGE, FORTRAN, F08, F08TS, F08_LARGE, F08TS_LARGE, F08_C, F08TS_C, BINDINGS };

/* A payload is the argument `count` times the size of `type`, times one of these. */
enum times {
    ONCE,
    RANKS,      /* of the communicator */
    ELEMENTS,   /* `count` is an array with one for each rank */
    TYPED,      /* and so is `type` */
    AT_ROOT,    /* the root's in such an array */
    PARTITIONS, /* the argument before `count` */
    SOURCES,    /* neighbors that are received from */
    FROM_EACH,  /* `count` is an array with one for each of these */
    TO_EACH,    /* the same for each neighbor that is sent to */
    TO_TYPED    /* and `type` is an array, too */
};

struct payload {
    uint8_t count, type; /* count 0: one element; type 0: no payload */
    uint8_t times;
};

struct calling;

/* Arguments are given by their positions, from 1 on; 0: there is none. */
struct operation {
    const char *symbol, *lower, *name;
    void (*enter)(struct calling *);
    void (*count)(struct calling *); /* after a call that succeeded */
    uint8_t arguments; /* of C; Fortran's code of errors follows them */
    uint8_t comm, peer, from, tag, request, status;
    uint8_t in_place; /* the buffer that may be MPI_IN_PLACE: then `in_place_payload` counts */
    uint8_t direction; /* of a message */
    struct payload payload, in_place_payload, received;
    _Atomic(void *) function[BINDINGS];
    _Atomic int id;
};

static int id_of(struct recorder *into, struct operation *operation)
{
    int id = atomic_load_explicit(&operation->id, memory_order_relaxed);
    if (!id)
        operation->id = id = name_id(into, operation->name, NAMES);
    return id;
}

/* Asking the linker takes about a microsecond, so each place in the code is asked once. */
static bool called_by_horovod(void *caller)
{
    static _Atomic uint64_t known_places[256];
    uint64_t address = (uintptr_t)caller;
    _Atomic uint64_t *slot = &known_places[(address ^ address >> 8) % 256];
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

#endif
