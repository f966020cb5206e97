/* The name of a datatype, and whether Horovod's controller sends it: asked for once. */
#ifndef HVPROF_DATATYPES_H
#define HVPROF_DATATYPES_H

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "../counting/cells.h"
#include "library.h"

enum { TYPE_SLOTS = 64 };

struct datatype {
    int name;
    bool control;
};

static struct {
    _Atomic uint64_t handle, found; /* generation, control, and name in the low byte */
    _Atomic uint64_t bytes;
} recent_types[TYPE_SLOTS];
static _Atomic uint64_t type_generation = 1;
static pthread_mutex_t knowing_types = PTHREAD_MUTEX_INITIALIZER;

/* Horovod's controller sends lengths (MPI_INT), messages (MPI_BYTE), bit vectors
 * (MPI_LONG_LONG_INT) and barriers (no type). Its tensors have types of fixed width
 * (MPI_INT64_T), floating types, or a type of Horovod's own. */
static bool is_control_name(const char *name)
{
    return !strcmp(name, "MPI_INT") || !strcmp(name, "MPI_BYTE") ||
           !strncmp(name, "MPI_LONG_LONG", 13);
}

static struct datatype look_up_type(struct recorder *into, MPI_Datatype type)
{
    char name[NAME_ROOM] = "";
    int length, bytes = 0;
    mpi.type_get_name(type, name, &length);
    bool control = is_control_name(name);
    if (!*name) {
        mpi.type_size(type, &bytes);
        snprintf(name, sizeof name, "derived %d B", bytes);
    }
    return (struct datatype){name_id(into, name, OPEN_NAMES), control};
}

static unsigned type_slot(uint64_t handle)
{
    return (unsigned)((handle ^ handle >> 6 ^ handle >> 12) % TYPE_SLOTS);
}

static struct datatype datatype_of(struct recorder *into, MPI_Datatype type)
{
    if (type == abi.no_type)
        return (struct datatype){OTHER, true};
    uint64_t handle = (uint64_t)type, generation = type_generation;
    unsigned slot = type_slot(handle);
    uint64_t found = atomic_load_explicit(&recent_types[slot].found, memory_order_acquire);
    if (atomic_load_explicit(&recent_types[slot].handle, memory_order_acquire) == handle &&
        found >> 9 == generation && recent_types[slot].found == found)
        return (struct datatype){(int)(found & 0xff), found >> 8 & 1};
    int bytes = 0;
    struct datatype datatype = look_up_type(into, type);
    mpi.type_size(type, &bytes);
    pthread_mutex_lock(&knowing_types);
    recent_types[slot].found = 0;
    recent_types[slot].handle = handle;
    recent_types[slot].bytes = bytes > 0 ? (uint64_t)bytes : 0;
    recent_types[slot].found =
        generation << 9 | (uint64_t)datatype.control << 8 | (uint64_t)datatype.name;
    pthread_mutex_unlock(&knowing_types);
    return datatype;
}

/* Bytes of an element of a type, and whether Horovod's controller sends it, without a question to
 * MPI: the type may be invalid, and an error handler would hear of it twice. Returns false where
 * no call of the type has succeeded yet and it is not a common one. */
static bool known_type(MPI_Datatype type, uint64_t *bytes, bool *control)
{
    *bytes = 0;
    *control = type == abi.no_type;
    if (*control)
        return true;
    uint64_t handle = (uint64_t)type, generation = type_generation;
    unsigned slot = type_slot(handle);
    uint64_t found = atomic_load_explicit(&recent_types[slot].found, memory_order_acquire);
    uint64_t size = atomic_load_explicit(&recent_types[slot].bytes, memory_order_acquire);
    if (atomic_load_explicit(&recent_types[slot].handle, memory_order_acquire) == handle &&
        found >> 9 == generation && recent_types[slot].found == found) {
        *bytes = size;
        *control = found >> 8 & 1;
        return true;
    }
    for (int i = 0; i < COMMON_TYPES; i++) {
        if (abi.common[i] == type) {
            *bytes = mpi.common_bytes[i];
            return true;
        }
    }
    return false;
}

/* A handle may be given to another type once its own is freed or renamed. */
static void forget_types(void)
{
    type_generation++;
}

#endif
