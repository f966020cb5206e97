/* The node-shared window: meetings of the node's ranks, and sums straight from
 * their memory.
 *
 * Every rank owns one region: a control block, then data at the same offsets on
 * every rank. Peers map it and read and write it in place. A meeting is a counter
 * per rank: a rank raises its own and waits until all others have caught up, first
 * by looking, then asleep on a futex, so that ranks without a core of their own do
 * not take one from those that compute. Because counters belong to ranks, whoever
 * waits knows whom for.
 *
 * Called from Python through ctypes, which lets go of the interpreter lock: one
 * call is a whole exchange. Linux only (futex).
 */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/futex.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* x86 builds carry several versions of a loop and pick one when loaded. */
#if defined(__x86_64__) && defined(__gnu_linux__) && !defined(__clang__)
#define VECTOR __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define VECTOR
#endif

enum { SPIN_NS = 20000, LOOK_AGAIN_NS = 200000000, BLOCK_BYTES = 16384 };

struct control {
    _Atomic uint64_t arrived; /* meetings this rank has come to */
    char pad0[56];
    _Atomic uint32_t bell;   /* futex word: rung by peers when they arrive */
    _Atomic uint32_t asleep; /* nobody rings a bell that no one listens to */
    char pad1[56];
};

struct window {
    int32_t rank, size;
    uint64_t met; /* meetings this rank has called */
    struct control **control;
    char **data;
    const int32_t *pid;
    uint8_t *missing; /* out: who had not arrived when a wait gave up */
};

enum dtype { FLOAT32, FLOAT64, FLOAT16, BFLOAT16 };
enum stage { IDLE, GATHERING, REDUCED, LEAVING };

/* One exchange, planned once and run again every step. */
struct exchange {
    uint64_t offset;       /* bytes into every rank's data */
    uint64_t begin, count; /* this rank's share, in elements from offset */
    int32_t dtype;
    int32_t stage; /* where a call that gave up goes on when called again */
    int32_t local; /* 1: the node is all there is, so the sum goes out at once */
    double scale;  /* every element of the sum is multiplied by it */
    double wait_s, transfer_s;
};

static double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void futex_wait(_Atomic uint32_t *word, uint32_t seen, long ns) {
    struct timespec t = {0, ns};
    syscall(SYS_futex, word, FUTEX_WAIT, seen, &t, NULL, 0);
}

static void futex_wake(_Atomic uint32_t *word) {
    syscall(SYS_futex, word, FUTEX_WAKE, 1, NULL, NULL, 0);
}

static void arrive(struct window *w) {
    w->met++;
    atomic_store(&w->control[w->rank]->arrived, w->met);
    for (int r = 0; r < w->size; r++) {
        struct control *peer = w->control[r];
        if (r != w->rank && atomic_load(&peer->asleep)) {
            atomic_fetch_add(&peer->bell, 1);
            futex_wake(&peer->bell);
        }
    }
}

static int find_missing(struct window *w) {
    int missing = 0;
    for (int r = 0; r < w->size; r++) {
        w->missing[r] = atomic_load(&w->control[r]->arrived) < w->met;
        missing += w->missing[r];
    }
    return missing;
}

/* Of those that are missing, keep the ones whose process is gone. */
static int find_dead(struct window *w) {
    int dead = 0;
    for (int r = 0; r < w->size; r++) {
        w->missing[r] = w->missing[r] && kill(w->pid[r], 0) != 0 && errno == ESRCH;
        dead += w->missing[r];
    }
    return dead;
}

/* Wait until all have arrived. Returns 0; 1 after timeout_s; 2 as soon as a rank
 * that is waited for is gone. */
static int wait_for_all(struct window *w, double timeout_s) {
    if (!find_missing(w)) return 0;
    struct control *own = w->control[w->rank];
    double start = now_s();
    while (now_s() - start < 1e-9 * SPIN_NS)
        if (!find_missing(w)) return 0;
    for (;;) {
        atomic_store(&own->asleep, 1);
        uint32_t seen = atomic_load(&own->bell);
        if (find_missing(w)) futex_wait(&own->bell, seen, LOOK_AGAIN_NS);
        atomic_store(&own->asleep, 0);
        if (!find_missing(w)) return 0;
        double waited = now_s() - start;
        if (waited > 1e-9 * LOOK_AGAIN_NS && find_dead(w)) {
            /* It may have arrived between the two looks, and ended after that. */
            if (!find_missing(w)) return 0;
            if (find_dead(w)) return 2;
        }
        if (waited > timeout_s) return find_missing(w) ? 1 : 0;
    }
}

static inline float float_from_bits(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline uint32_t bits_of_float(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* binary16 and bfloat16 are sums in binary32, rounded to nearest even once. */
static inline float from_half(uint16_t h) {
    uint32_t magnitude = (uint32_t)(h & 0x7fff) << 13;
    float value = float_from_bits(magnitude) * 0x1p112f; /* moves the exponent's bias */
    uint32_t bits = bits_of_float(value) | ((h & 0x7c00) == 0x7c00 ? 0x7f800000u : 0u);
    return float_from_bits(bits | (uint32_t)(h & 0x8000) << 16);
}

static inline uint16_t to_half(float value) {
    uint32_t bits = bits_of_float(value), sign = bits >> 16 & 0x8000;
    bits &= 0x7fffffff;
    uint32_t normal = (bits + 0xfff + (bits >> 13 & 1) - (112u << 23)) >> 13;
    /* Added to 0.5, whose last place is the smallest half, the rounding is done. */
    uint32_t tiny = bits_of_float(float_from_bits(bits) + 0.5f) - 0x3f000000u;
    uint32_t half = bits < 0x38800000u ? tiny : normal;
    half = bits >= 0x477ff000u ? 0x7c00 : half;
    half = bits > 0x7f800000u ? 0x7e00 : half;
    return (uint16_t)(half | sign);
}

static inline float from_bfloat(uint16_t b) { return float_from_bits((uint32_t)b << 16); }

static inline uint16_t to_bfloat(float value) {
    uint32_t bits = bits_of_float(value);
    uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    return (uint16_t)((bits & 0x7fffffff) > 0x7f800000u ? bits >> 16 | 0x40 : rounded);
}

#define SAME(x) (x)

/* Sum a block of every rank in rank order, so that the bits do not depend on who
 * sums, then write it to each. The block stays in the first-level cache. */
#define DEFINE_SUM(NAME, STORED, SUMMED, LOAD, STORE)                                   \
    VECTOR static void NAME(const struct window *w, uint64_t byte, uint64_t count,      \
                            SUMMED scale, int to_all) {                                 \
        enum { BLOCK = BLOCK_BYTES / sizeof(SUMMED) };                                  \
        SUMMED sum[BLOCK];                                                              \
        for (uint64_t at = 0; at < count; at += BLOCK) {                                \
            uint64_t n = count - at < BLOCK ? count - at : BLOCK;                       \
            const STORED *first = (const STORED *)(w->data[0] + byte) + at;             \
            for (uint64_t i = 0; i < n; i++) sum[i] = LOAD(first[i]);                   \
            for (int r = 1; r < w->size; r++) {                                         \
                const STORED *next = (const STORED *)(w->data[r] + byte) + at;          \
                for (uint64_t i = 0; i < n; i++) sum[i] += LOAD(next[i]);               \
            }                                                                           \
            for (int r = 0; r < w->size; r++) {                                         \
                if (!to_all && r != w->rank) continue;                                  \
                STORED *out = (STORED *)(w->data[r] + byte) + at;                       \
                for (uint64_t i = 0; i < n; i++) out[i] = STORE(sum[i] * scale);        \
            }                                                                           \
        }                                                                               \
    }

DEFINE_SUM(sum_float32, float, float, SAME, SAME)
DEFINE_SUM(sum_float64, double, double, SAME, SAME)
DEFINE_SUM(sum_float16, uint16_t, float, from_half, to_half)
DEFINE_SUM(sum_bfloat16, uint16_t, float, from_bfloat, to_bfloat)

static const int ITEM_BYTES[] = {4, 8, 2, 2};

static void reduce_share(const struct window *w, const struct exchange *x) {
    uint64_t byte = x->offset + x->begin * ITEM_BYTES[x->dtype];
    switch (x->dtype) {
    case FLOAT32: sum_float32(w, byte, x->count, (float)x->scale, x->local); break;
    case FLOAT64: sum_float64(w, byte, x->count, x->scale, x->local); break;
    case FLOAT16: sum_float16(w, byte, x->count, (float)x->scale, x->local); break;
    case BFLOAT16: sum_bfloat16(w, byte, x->count, (float)x->scale, x->local); break;
    }
}

static void publish_share(const struct window *w, const struct exchange *x) {
    uint64_t byte = x->offset + x->begin * ITEM_BYTES[x->dtype];
    uint64_t bytes = x->count * ITEM_BYTES[x->dtype];
    for (int r = 0; r < w->size; r++)
        if (r != w->rank) memcpy(w->data[r] + byte, w->data[w->rank] + byte, bytes);
}

/* Run an exchange, or go on with one that gave up. Returns 0 when done, 1 or 2 as
 * wait_for_all does (w->missing names the ranks), and 3 when the share is reduced
 * and the caller has to take it between nodes before calling again. */
int window_exchange(struct window *w, struct exchange *x, double timeout_s) {
    double start = now_s();
    int gave_up;
    switch (x->stage) {
    case IDLE:
        x->wait_s = x->transfer_s = 0;
        arrive(w);
        x->stage = GATHERING; /* fall through */
    case GATHERING:
        gave_up = wait_for_all(w, timeout_s);
        x->wait_s += now_s() - start;
        if (gave_up) return gave_up;
        start = now_s();
        reduce_share(w, x);
        if (!x->local) {
            x->stage = REDUCED;
            x->transfer_s += now_s() - start;
            return 3;
        } /* fall through */
    case REDUCED:
        if (x->stage == REDUCED) publish_share(w, x);
        arrive(w);
        x->stage = LEAVING; /* fall through */
    case LEAVING:
        gave_up = wait_for_all(w, timeout_s);
        x->transfer_s += now_s() - start;
        if (gave_up) return gave_up;
        x->stage = IDLE;
    }
    return 0;
}
