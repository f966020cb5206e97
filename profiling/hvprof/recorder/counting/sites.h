/* Calls by the place in the program that makes them: each has an operation, a library or executable,
 * and an offset in it, which hvprof resolves to a line when it reads them (format/sites.py). */
#ifndef HVPROF_SITES_H
#define HVPROF_SITES_H

#include <dlfcn.h>
#include <limits.h>
#include <link.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../recorder.h"

static void add_to_site(struct site *site, uint64_t time_ns)
{
    atomic_fetch_add_explicit(&site->calls, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&site->time_ns, time_ns, memory_order_relaxed);
    uint64_t most = atomic_load_explicit(&site->max_ns, memory_order_relaxed);
    while (time_ns > most &&
           !atomic_compare_exchange_weak_explicit(&site->max_ns, &most, time_ns,
                                                  memory_order_relaxed, memory_order_relaxed))
        continue;
}

/* The absolute path of a library or, for one without a name, of the executable. */
static void path_of(const struct link_map *loaded, char *path)
{
    char whole[PATH_MAX] = "";
    if (!loaded->l_name[0])
        (void)!readlink("/proc/self/exe", whole, sizeof whole - 1);
    else if (!realpath(loaded->l_name, whole))
        strncpy(whole, loaded->l_name, sizeof whole - 1);
    strncpy(path, whole, OBJECT_BYTES - 1);
}

/* The file that an address lies in, "" where it is not known, and what its addresses begin at. */
static uint64_t find_object(void *address, char *path)
{
    Dl_info found = {0};
    struct link_map *loaded = NULL;
    if (!dladdr1(address, &found, (void **)&loaded, RTLD_DL_LINKMAP) || !loaded)
        return 0;
    path_of(loaded, path);
    /* Of an executable that is not position-independent, addresses in its file are absolute. */
    return loaded->l_addr;
}

/* The number of a file, from 1; 0 where it is not known, or there is no room for it. */
static uint32_t object_number(struct sites *sites, const char *path)
{
    uint32_t number = 0;
    while (number < OBJECTS && sites->objects[number][0] && strcmp(sites->objects[number], path))
        number++;
    if (number == OBJECTS || !path[0])
        return 0;
    if (!sites->objects[number][0])
        memcpy(sites->objects[number], path, OBJECT_BYTES);
    return number + 1;
}

static struct site *add_site(struct recorder *into, unsigned place, uint64_t key, int operation,
                             void *caller)
{
    struct sites *sites = into->sites;
    char path[OBJECT_BYTES] = "";
    /* It waits for a dlopen, whose library may wait for the mutex while it is loaded. */
    uint64_t base = place < SITES ? find_object(caller, path) : 0;
    pthread_mutex_lock(&into->changing);
    while (place < SITES && sites->at[place].key && sites->at[place].key != key)
        place++;
    struct site *site = &sites->at[place < SITES ? place : 0];
    if (place < SITES && !site->key) {
        site->object = object_number(sites, path);
        site->offset = (uintptr_t)caller - base;
        site->operation = (uint32_t)operation;
        atomic_store_explicit(&site->key, key, memory_order_release);
    }
    pthread_mutex_unlock(&into->changing);
    return site;
}

/* Those past the table's room are added to its first place, which stands for no place. */
static void count_at_site(struct recorder *into, int operation, void *caller, uint64_t time_ns)
{
    struct sites *sites = into->sites;
    if (!sites)
        return;
    uint64_t key = (uintptr_t)caller ^ (uint64_t)operation << 56;
    unsigned place = 1 + (unsigned)(key * 0x9e3779b97f4a7c15u >> 54) % (SITES / 2);
    uint64_t found = 0;
    while (place < SITES &&
           (found = atomic_load_explicit(&sites->at[place].key, memory_order_acquire)) &&
           found != key)
        place++;
    struct site *site = place < SITES && found == key
                            ? &sites->at[place]
                            : add_site(into, place, key, operation, caller);
    add_to_site(site, time_ns);
}

#endif
