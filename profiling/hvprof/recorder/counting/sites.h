/* Calls by the place in the program that makes them: each has an operation, a library or executable,
 * and an offset in it, which hvprof resolves to a line when it reads them (format/sites.py). Those of
 * a module of Python's have the line of Python that called it. */
#ifndef HVPROF_SITES_H
#define HVPROF_SITES_H

#include <dlfcn.h>
#include <limits.h>
#include <link.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "python.h"

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

/* The place of a key in the table: that of its site, a free one, or SITES where there is neither. */
static unsigned place_of(struct sites *sites, uint64_t key)
{
    unsigned place = 1 + (unsigned)(key * 0x9e3779b97f4a7c15u >> 54) % (SITES / 2);
    uint64_t found;
    while (place < SITES &&
           (found = atomic_load_explicit(&sites->at[place].key, memory_order_acquire)) &&
           found != key)
        place++;
    return place;
}

/* Those past the table's room are added to its first place, which stands for no place. */
static struct site *add_site(struct recorder *into, uint64_t key, int operation,
                             struct source_line where, enum extension extension)
{
    struct sites *sites = into->sites;
    pthread_mutex_lock(&into->changing);
    unsigned place = place_of(sites, key);
    struct site *site = &sites->at[place < SITES ? place : 0];
    if (place < SITES && !site->key) {
        site->object = object_number(sites, where.path);
        site->offset = where.offset;
        site->line = where.line;
        site->extension = extension;
        site->operation = (uint32_t)operation;
        atomic_store_explicit(&site->key, key, memory_order_release);
    }
    pthread_mutex_unlock(&into->changing);
    return site;
}

static struct site *site_of(struct recorder *into, uint64_t key, int operation, void *caller)
{
    unsigned place = place_of(into->sites, key);
    if (place == SITES)
        return &into->sites->at[0];
    if (into->sites->at[place].key)
        return &into->sites->at[place];
    /* Before the lock: it waits for a dlopen, whose library may wait for that while it is loaded. */
    struct source_line where = {0};
    where.offset = (uintptr_t)caller - find_object(caller, where.path);
    return add_site(into, key, operation, where, extension_in(where.path));
}

/* The site of the line of Python that called an extension module, or else that in the module. */
static struct site *python_site(struct recorder *into, struct site *site, uint64_t key,
                                int operation)
{
    uint64_t code, instruction;
    struct source_line where = {0};
    if (!find_instruction(&code, &instruction))
        return site;
    key ^= (code ^ instruction << 20) * 0x9e3779b97f4a7c15u | 1;
    unsigned place = place_of(into->sites, key);
    if (place < SITES && into->sites->at[place].key)
        return &into->sites->at[place];
    if (!find_line(site->extension, code, &where))
        return site;
    return add_site(into, key, operation, where, NO_EXTENSION);
}

static void count_at_site(struct recorder *into, int operation, void *caller, uint64_t time_ns)
{
    if (!into->sites)
        return;
    uint64_t key = (uintptr_t)caller ^ (uint64_t)operation << 56;
    struct site *site = site_of(into, key, operation, caller);
    if (site->extension)
        site = python_site(into, site, key, operation);
    add_to_site(site, time_ns);
}

#endif
