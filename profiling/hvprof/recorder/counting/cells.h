/* Counting a call in its cell. */
#ifndef HVPROF_CELLS_H
#define HVPROF_CELLS_H

#include <fcntl.h>
#include <string.h>

#include "../recorder.h"

/* The number of a name, which is added if it is new; OTHER if the table is full
 * among the first `places`. */
static int name_id(struct recorder *into, const char *name, int places)
{
    char(*names)[NAME_BYTES] = into->file->names;
    int id = NATIVE;
    if (!*name)
        return OTHER;
    pthread_mutex_lock(&into->changing);
    while (id < NAMES && names[id][0] && strncmp(names[id], name, NAME_BYTES - 1))
        id++;
    bool known = id < NAMES && names[id][0];
    if (!known && id < places)
        strncpy(names[id], name, NAME_BYTES - 1);
    else if (!known)
        id = OTHER;
    pthread_mutex_unlock(&into->changing);
    return id;
}

/* Storing to a hole of a mapped file on a full disk would kill the program. */
static bool has_room(struct recorder *into, uint32_t cells)
{
    if (cells <= into->cells_there)
        return true;
    if (cells > CELLS)
        return false;
    size_t end = offsetof(struct recording, cells) + into->cells_there * sizeof(struct cell);
    /* From the end on: where glibc must emulate it, it writes zeros over zeros that it has read,
     * which another thread may be counting in. */
    if (posix_fallocate(into->descriptor, (off_t)end, CELLS_AT_ONCE * sizeof(struct cell)))
        return false;
    into->cells_there += CELLS_AT_ONCE;
    return true;
}

static struct cell *add_cell(struct recorder *into, uint64_t key, uint64_t place)
{
    struct recording *file = into->file;
    struct cell *cell = NULL;
    pthread_mutex_lock(&into->changing);
    /* Another thread may have been first: look on from where nothing was found. */
    while (into->index[place].key && into->index[place].key != key)
        place = (place + 1) % (1 << INDEX_BITS);
    uint32_t number = file->cells_end;
    if (into->index[place].key == key) {
        cell = &file->cells[into->index[place].cell];
    } else if (has_room(into, number + 1)) {
        cell = &file->cells[number];
        cell->key = key;
        file->cells_end = number + 1;
        into->index[place].cell = number;
        into->index[place].key = key;
    }
    pthread_mutex_unlock(&into->changing);
    return cell;
}

static bool has_cell(const struct recorder *in, uint64_t key)
{
    uint64_t place = key * 0x9e3779b97f4a7c15u >> (64 - INDEX_BITS), found;
    while ((found = in->index[place].key) && found != key)
        place = (place + 1) % (1 << INDEX_BITS);
    return found;
}

static struct cell *find_cell(struct recorder *into, uint64_t key)
{
    uint64_t place = key * 0x9e3779b97f4a7c15u >> (64 - INDEX_BITS);
    for (;; place = (place + 1) % (1 << INDEX_BITS)) {
        uint64_t found = atomic_load_explicit(&into->index[place].key, memory_order_acquire);
        if (found == key)
            return &into->file->cells[into->index[place].cell];
        if (!found)
            return add_cell(into, key, place);
    }
}

/* When the blocks are full, each two become one of twice the calls. */
static void add_to_block(struct cell *cell, uint64_t call, uint64_t time_ns)
{
    if (call >> cell->block_shift == BLOCKS) {
        for (int i = 0; i < BLOCKS / 2; i++)
            cell->blocks_ns[i] = cell->blocks_ns[2 * i] + cell->blocks_ns[2 * i + 1];
        memset(cell->blocks_ns + BLOCKS / 2, 0, sizeof cell->blocks_ns / 2);
        cell->block_shift++;
    }
    cell->blocks_ns[call >> cell->block_shift] += time_ns;
}

/* Returns which call of its kind it is, from 1; 0 if the table of kinds is full. */
static uint64_t count(struct recorder *into, uint64_t key, uint64_t bytes, uint64_t time_ns,
                      uint64_t wait_ns)
{
    struct cell *cell = find_cell(into, key);
    if (!cell) {
        atomic_fetch_add_explicit(&into->file->dropped_calls, 1, memory_order_relaxed);
        return 0;
    }
    lock(&cell->lock);
    uint64_t call = cell->calls++;
    cell->bytes += bytes;
    cell->time_ns += time_ns;
    cell->wait_ns += wait_ns;
    if (call == 0 || time_ns < cell->min_ns)
        cell->min_ns = time_ns;
    if (time_ns > cell->max_ns)
        cell->max_ns = time_ns;
    uint32_t *bucket = &cell->histogram[time_bucket(time_ns)];
    *bucket += *bucket != UINT32_MAX;
    add_to_block(cell, call, time_ns);
    unlock(&cell->lock);
    return call + 1;
}

#endif
