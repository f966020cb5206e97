/* How fast a core is: the same small piece of work is timed again and again. It shows a core that is
 * slow for a while, though it is not taken away: by heat, a power limit, or whatever runs on the
 * other hyperthread of the core, which a virtual machine does not even see. */
#ifndef HVPROF_CORE_TRIAL_H
#define HVPROF_CORE_TRIAL_H

#include "kernel.h"

enum { TRIAL_ROUNDS = 300, TRIAL_TRIES = 3, TRIAL_WORDS = 256 };
#define TRIAL_EVERY_NS UINT64_C(5000000)

/* Chains of several kinds that do not wait for each other: they keep the units of a core busy that
 * hyperthreads share. */
static uint64_t work_of_a_trial(const uint64_t *words)
{
    uint64_t a = 1, b = 2, c = 3, d = 4;
    for (uint64_t i = 0; i < TRIAL_ROUNDS; i++) {
        a = a * 3 + words[i % TRIAL_WORDS];
        b = b * 5 + words[(i + 7) % TRIAL_WORDS];
        c ^= c << 3;
        d += (d >> 2) ^ words[3 * i % TRIAL_WORDS];
    }
    return a ^ b ^ c ^ d;
}

static uint64_t middle_of(const uint64_t of[TRIAL_TRIES])
{
    uint64_t low = of[0] < of[1] ? of[0] : of[1], high = of[0] < of[1] ? of[1] : of[0];
    return of[2] < low ? low : of[2] > high ? high : of[2];
}

/* After a call, which is where the program is about to compute. The middle try has neither cold
 * caches nor an interrupt. */
static void try_core(uint64_t now_ns)
{
    static uint64_t words[TRIAL_WORDS];
    static _Atomic uint64_t last_ns;
    uint64_t last = atomic_load_explicit(&last_ns, memory_order_relaxed);
    if (now_ns < last + TRIAL_EVERY_NS)
        return;
    struct recorder *into = atomic_load(&recorder);
    if (!into || !atomic_compare_exchange_strong(&last_ns, &last, now_ns))
        return;
    uint64_t took_ns[TRIAL_TRIES];
    for (int i = 0; i < TRIAL_TRIES; i++) {
        uint64_t begin_ns = clock_ns(CLOCK_MONOTONIC), result = work_of_a_trial(words);
        __asm__ volatile("" : : "r"(result));
        took_ns[i] = clock_ns(CLOCK_MONOTONIC) - begin_ns;
    }
    struct machine *machine = &into->file->machine;
    uint64_t since_ns = last ? now_ns - last : 0;
    atomic_fetch_add_explicit(&machine->tried_ns, since_ns, memory_order_relaxed);
    atomic_fetch_add_explicit(&machine->trials_ns2, middle_of(took_ns) * since_ns,
                              memory_order_relaxed);
    atomic_fetch_add_explicit(&machine->trials, 1, memory_order_relaxed);
}

#endif
