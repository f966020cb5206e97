/* The clock of a rank's core, and the CPU quota of its control group. */
#ifndef HVPROF_MACHINE_H
#define HVPROF_MACHINE_H

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "run_usage.h"

enum { ADDITIONS = 4000, CLOCK_TRIES = 8, PATH_BYTES = 4096, LINE_BYTES = 1024 };

/* Additions that wait for each other: a core does one in each cycle of its clock. */
static uint64_t add_again_and_again(uint64_t sum, uint64_t one)
{
    __asm__ volatile("" : "+r"(one));
    for (int i = 0; i < ADDITIONS; i++) {
        sum += one;
        __asm__ volatile("" : "+r"(sum));
    }
    return sum;
}

/* The clock of the core that this thread is on. No interface of the kernel says it everywhere: a
 * virtual machine has none. The shortest of some tries is the one that nothing interrupted. */
static uint32_t clock_mhz(void)
{
    uint64_t least_ns = UINT64_MAX, sum = 0;
    for (int i = 0; i < CLOCK_TRIES; i++) {
        uint64_t begin_ns = clock_ns(CLOCK_MONOTONIC);
        sum = add_again_and_again(sum, 1);
        uint64_t took_ns = clock_ns(CLOCK_MONOTONIC) - begin_ns;
        least_ns = took_ns && took_ns < least_ns ? took_ns : least_ns;
    }
    return (uint32_t)(ADDITIONS * UINT64_C(1000) / least_ns);
}

/* The same of the core on which the first thread computes: an idle core may clock lower. */
static uint32_t clock_of_core_mhz(int core)
{
    cpu_set_t before, one;
    CPU_ZERO(&one);
    if (core < 0 || core >= CPU_SETSIZE || sched_getaffinity(0, sizeof before, &before))
        return clock_mhz();
    CPU_SET(core, &one);
    bool moved = !sched_setaffinity(0, sizeof one, &one);
    uint32_t mhz = clock_mhz();
    if (moved)
        sched_setaffinity(0, sizeof before, &before);
    return mhz;
}

/* A control group, and those that it is in: from `path`, up to where one has a quota. False where
 * none has. `path` becomes that group's. */
static bool find_quota(char *path, size_t root_bytes)
{
    char file[PATH_BYTES + 32];
    for (;;) {
        snprintf(file, sizeof file, "%s/cpu.stat", path);
        if (value_in(file, "nr_periods"))
            return true;
        char *last = strrchr(path, '/');
        if (!last || (size_t)(last - path) < root_bytes)
            return false;
        *last = '\0';
    }
}

/* The folder of the control group that limits this process's time on cores; "" for none. */
static void quota_folder(char folder[PATH_BYTES])
{
    char line[LINE_BYTES];
    FILE *groups = fopen("/proc/self/cgroup", "re");
    bool found = false;
    while (groups && !found && fgets(line, sizeof line, groups)) {
        /* NUMBER:CONTROLLERS:PATH; version 2 has no controllers there, and one hierarchy. */
        char *rest = line, controllers[128];
        strsep(&rest, ":");
        char *names = rest ? strsep(&rest, ":") : NULL;
        if (!rest || strlen(names) >= sizeof controllers)
            continue;
        rest[strcspn(rest, "\n")] = '\0';
        strcpy(controllers, names);
        bool limits = !*controllers;
        for (char *each = controllers, *name; (name = strsep(&each, ","));)
            limits = limits || !strcmp(name, "cpu");
        int root = snprintf(folder, PATH_BYTES, "/sys/fs/cgroup%s%s", *names ? "/" : "", names);
        snprintf(folder + root, PATH_BYTES - (size_t)root, "%s", strcmp(rest, "/") ? rest : "");
        found = limits && find_quota(folder, (size_t)root);
    }
    if (groups)
        fclose(groups);
    if (!found)
        folder[0] = '\0';
}

/* The quota in thousandths of a core; 0: none. */
static uint32_t quota_millicores(const char *folder)
{
    char path[PATH_BYTES + 32], line[64] = "";
    unsigned long long quota = 0, period = 0;
    snprintf(path, sizeof path, "%s/cpu.max", folder);
    FILE *file = fopen(path, "re");
    if (file) {
        if (fgets(line, sizeof line, file))
            sscanf(line, "%llu %llu", &quota, &period);
        fclose(file);
    } else {
        snprintf(path, sizeof path, "%s/cpu.cfs_quota_us", folder);
        quota = value_in(path, "");
        snprintf(path, sizeof path, "%s/cpu.cfs_period_us", folder);
        period = value_in(path, "");
    }
    return period && quota < UINT32_MAX ? (uint32_t)(quota * 1000 / period) : 0;
}

/* Adds the periods since the last look to `into`, which a reader may see meanwhile: it is all of
 * words. A quota that was not there at the last look counts from its beginning. */
static void look_at_quota(struct machine *into)
{
    static char folder[PATH_BYTES], before[PATH_BYTES];
    static uint64_t periods, throttled;
    static bool looked;
    char path[PATH_BYTES + 32];
    quota_folder(folder);
    if (*folder) {
        snprintf(path, sizeof path, "%s/cpu.stat", folder);
        uint64_t periods_now = value_in(path, "nr_periods");
        uint64_t throttled_now = value_in(path, "nr_throttled");
        if (strcmp(folder, before))
            periods = throttled = 0;
        if (looked) {
            into->periods += (uint32_t)(periods_now - periods);
            into->throttled += (uint32_t)(throttled_now - throttled);
            into->quota_millicores = quota_millicores(folder);
        }
        strcpy(before, folder);
        periods = periods_now;
        throttled = throttled_now;
    }
    looked = true;
}

static void look_at_clock(struct machine *into, int core)
{
    into->mhz_sum += clock_of_core_mhz(core);
    into->looks++;
}

#endif
