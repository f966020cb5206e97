/* A node's ranks, how far each has come, and the wait for all of them.
 *
 * Who waits looks for a while, then sleeps on a futex. Because `reached` belongs to a rank, a
 * waiting rank knows which ranks are late. Linux only (futex).
 */
#ifndef HVD_EXT_WAITING_H
#define HVD_EXT_WAITING_H
#define _GNU_SOURCE
#include <errno.h>
#include <linux/futex.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { SPIN_NS = 20000, LOOKS_BEFORE_YIELD = 250, LOOK_AGAIN_NS = 200000000 };
enum { LINE = 64, PAYLOAD = 56, WHY = 512 };
/* EVEN and ODD: marks of such tickets, whose message lies in the same cache line. */
enum mark { READY, DONE, EVEN, ODD };
enum outcome { OVER, TIMED_OUT, DIED, REDUCED, DIFFER, FAILED, UNEQUAL };

/* The collective that an exchange is part of; ranks compare it. All 0 where the exchange was
 * planned together. */
struct collective {
    uint64_t bytes, about;
};

struct control {
    _Atomic uint64_t reached[2]; /* tickets this rank is ready with, and done with */
    struct collective collectives[2]; /* of an even and an odd ticket */
    _Atomic uint64_t failed[2];  /* the first and the last ticket this rank will not reach */
    _Atomic uint32_t bell;      /* futex word, rung when what is awaited comes */
    _Atomic uint64_t awaits[4]; /* the ticket this rank sleeps for; 0: awake */
    char pad1[24];
    char token[LINE]; /* of regions.py */
    struct {
        _Atomic uint64_t reached;
        char part[PAYLOAD];
    } line[2];
    char why[WHY]; /* it will not reach `failed` */
};

static _Atomic uint64_t *mark_of(struct control *c, enum mark mark) {
    return mark < EVEN ? &c->reached[mark] : &c->line[mark - EVEN].reached;
}

struct window {
    int32_t rank, size;
    struct control **control;
    char **data;
    const int32_t *pid;
    uint8_t *missing; /* out: which ranks are late, or have failed */
    struct collective collective; /* that this rank's next exchange is part of */
};

static double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Whether a signal was handled meanwhile. */
static int futex_wait(_Atomic uint32_t *word, uint32_t seen, long ns) {
    struct timespec t = {0, ns};
    return syscall(SYS_futex, word, FUTEX_WAIT, seen, &t, NULL, 0) != 0 && errno == EINTR;
}

static void futex_wake(_Atomic uint32_t *word) {
    syscall(SYS_futex, word, FUTEX_WAKE, 1, NULL, NULL, 0);
}

static void reach(struct window *w, enum mark mark, uint64_t ticket) {
    uint64_t before = atomic_exchange(mark_of(w->control[w->rank], mark), ticket);
    for (int r = 0; r < w->size; r++) {
        struct control *peer = w->control[r];
        uint64_t awaited = atomic_load(&peer->awaits[mark]);
        if (before < awaited && awaited <= ticket) {
            atomic_fetch_add(&peer->bell, 1);
            futex_wake(&peer->bell);
        }
    }
}

static uint64_t reached(const struct window *w, enum mark mark) {
    return atomic_load(mark_of(w->control[w->rank], mark));
}

static int find_missing(struct window *w, enum mark mark, uint64_t ticket) {
    int missing = 0;
    for (int r = 0; r < w->size; r++) {
        w->missing[r] = atomic_load(mark_of(w->control[r], mark)) < ticket;
        missing += w->missing[r];
    }
    return missing;
}

/* Among missing ranks, keep those that have said that they will not come. */
static int find_failed(struct window *w, uint64_t ticket) {
    int failed = 0;
    for (int r = 0; r < w->size; r++) {
        struct control *peer = w->control[r];
        w->missing[r] = w->missing[r] && atomic_load(&peer->failed[0]) <= ticket &&
                        ticket <= atomic_load(&peer->failed[1]);
        failed += w->missing[r];
    }
    return failed;
}

/* Among missing ranks, keep those whose process is gone. */
static int find_dead(struct window *w) {
    int dead = 0;
    for (int r = 0; r < w->size; r++) {
        w->missing[r] = w->missing[r] && kill(w->pid[r], 0) != 0 && errno == ESRCH;
        dead += w->missing[r];
    }
    return dead;
}

/* Wait until all ranks have reached a ticket: OVER; or TIMED_OUT after timeout_s, or once a
 * signal has come, which Python handles before it waits on; or DIED as soon as a rank that
 * is waited for is gone, or FAILED once it has said that it will not come. */
static enum outcome wait_for_all(struct window *w, enum mark mark, uint64_t ticket,
                                 double timeout_s) {
    for (int looks = 0; looks < LOOKS_BEFORE_YIELD; looks++)
        if (!find_missing(w, mark, ticket)) return OVER;
    struct control *own = w->control[w->rank];
    double start = now_s();
    while (now_s() - start < 1e-9 * SPIN_NS) {
        sched_yield(); /* Who is waited for may be waiting for this core. */
        if (!find_missing(w, mark, ticket)) return OVER;
    }
    for (;;) {
        atomic_store(&own->awaits[mark], ticket);
        uint32_t seen = atomic_load(&own->bell);
        int missing = find_missing(w, mark, ticket), failed = missing && find_failed(w, ticket);
        int interrupted = missing && !failed && futex_wait(&own->bell, seen, LOOK_AGAIN_NS);
        atomic_store(&own->awaits[mark], 0);
        if (failed) return FAILED;
        if (!find_missing(w, mark, ticket)) return OVER;
        double waited = now_s() - start;
        if (waited > 1e-9 * LOOK_AGAIN_NS && find_missing(w, mark, ticket) && find_dead(w)) {
            /* It may have come between the two looks, and ended after that. */
            if (!find_missing(w, mark, ticket)) return OVER;
            if (find_dead(w)) return DIED;
        }
        if (interrupted || waited > timeout_s) return find_missing(w, mark, ticket) ? TIMED_OUT : OVER;
    }
}

#endif
