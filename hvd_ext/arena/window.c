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
#include <sched.h>
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

enum { SPIN_NS = 20000, LOOKS_BEFORE_YIELD = 30, LOOK_AGAIN_NS = 200000000, BLOCK_BYTES = 16384 };

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

enum stage { IDLE, GATHERING, REDUCED, LEAVING };

/* One exchange, planned once and run again every step. */
struct exchange {
    uint64_t offset;       /* bytes into every rank's data */
    uint64_t begin, count; /* this rank's share, in elements from offset */
    int32_t dtype, operation;
    int32_t stage; /* where a call that gave up goes on when called again */
    int32_t local; /* 1: the node is all there is, so the sum goes out at once */
    double scale;  /* every element of a float result is multiplied by it */
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
    for (int looks = 0; now_s() - start < 1e-9 * SPIN_NS; looks++) {
        if (!find_missing(w)) return 0;
        /* Who is waited for may be waiting for this core. */
        if (looks > LOOKS_BEFORE_YIELD) sched_yield();
    }
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

/* A kernel combines `n_in` arrays in their order, so that the bits do not depend on
 * who combines, multiplies by `scale`, and writes the result to `n_out` arrays. It
 * works in blocks that stay in the first-level cache. */
typedef void kernel(const char *const *in, int n_in, char *const *out, int n_out,
                    uint64_t count, double scale);

#define SAME(x) (x)
#define TIMES(x) ((x) * factor)
#define ADD(a, b) ((a) + (b))
#define LESS(a, b) ((b) < (a) ? (b) : (a))
#define MORE(a, b) ((b) > (a) ? (b) : (a))
#define MULTIPLY(a, b) ((a) * (b))

#define DEFINE(NAME, STORED, HELD, LOAD, STORE, COMBINE, SCALE)                         \
    VECTOR static void NAME(const char *const *in, int n_in, char *const *out,          \
                            int n_out, uint64_t count, double scale) {                  \
        enum { BLOCK = BLOCK_BYTES / sizeof(HELD) };                                    \
        HELD held[BLOCK];                                                               \
        const HELD factor = (HELD)scale;                                                \
        (void)factor;                                                                   \
        for (uint64_t at = 0; at < count; at += BLOCK) {                                \
            const uint64_t n = count - at < BLOCK ? count - at : BLOCK;                 \
            const STORED *a = (const STORED *)in[0] + at;                               \
            if (n_in == 1)                                                              \
                for (uint64_t i = 0; i < n; i++) held[i] = LOAD(a[i]);                  \
            for (int r = 1; r < n_in; r++) {                                            \
                const STORED *b = (const STORED *)in[r] + at;                           \
                if (r == 1)                                                             \
                    for (uint64_t i = 0; i < n; i++)                                    \
                        held[i] = (HELD)COMBINE(LOAD(a[i]), LOAD(b[i]));                \
                else                                                                    \
                    for (uint64_t i = 0; i < n; i++)                                    \
                        held[i] = (HELD)COMBINE(held[i], LOAD(b[i]));                   \
            }                                                                           \
            for (int r = 0; r < n_out; r++) {                                           \
                STORED *to = (STORED *)out[r] + at;                                     \
                for (uint64_t i = 0; i < n; i++) to[i] = (STORED)STORE(SCALE(held[i])); \
            }                                                                           \
        }                                                                               \
    }

#define DEFINE_ALL(NAME, STORED, HELD, LOAD, STORE, SCALE)                              \
    DEFINE(sum_##NAME, STORED, HELD, LOAD, STORE, ADD, SCALE)                           \
    DEFINE(min_##NAME, STORED, HELD, LOAD, STORE, LESS, SCALE)                          \
    DEFINE(max_##NAME, STORED, HELD, LOAD, STORE, MORE, SCALE)                          \
    DEFINE(product_##NAME, STORED, HELD, LOAD, STORE, MULTIPLY, SCALE)

DEFINE_ALL(float32, float, float, SAME, SAME, TIMES)
DEFINE_ALL(float64, double, double, SAME, SAME, TIMES)
DEFINE_ALL(float16, uint16_t, float, from_half, to_half, TIMES)
DEFINE_ALL(bfloat16, uint16_t, float, from_bfloat, to_bfloat, TIMES)
/* Whole numbers wrap around, as in MPI and numpy: unsigned, that is defined. */
DEFINE_ALL(int64, int64_t, int64_t, SAME, SAME, SAME)
DEFINE_ALL(int32, int32_t, int32_t, SAME, SAME, SAME)
DEFINE_ALL(int8, int8_t, int8_t, SAME, SAME, SAME)
DEFINE_ALL(uint8, uint8_t, uint8_t, SAME, SAME, SAME)

#define ROW(NAME) {sum_##NAME, min_##NAME, max_##NAME, product_##NAME}
/* In the order of DTYPES and OPERATIONS in window.py. */
static kernel *const KERNELS[][4] = {ROW(float32), ROW(float64), ROW(float16), ROW(bfloat16),
                                     ROW(int64),   ROW(int32),   ROW(int8),    ROW(uint8)};
static const int ITEM_BYTES[] = {4, 8, 2, 2, 8, 4, 1, 1};

static void reduce_share(const struct window *w, const struct exchange *x) {
    uint64_t byte = x->offset + x->begin * ITEM_BYTES[x->dtype];
    char *at[w->size];
    for (int r = 0; r < w->size; r++) at[r] = w->data[r] + byte;
    KERNELS[x->dtype][x->operation]((const char *const *)at, w->size,
                                    x->local ? at : &at[w->rank], x->local ? w->size : 1,
                                    x->count, x->scale);
}

static void publish_share(const struct window *w, const struct exchange *x) {
    uint64_t byte = x->offset + x->begin * ITEM_BYTES[x->dtype];
    uint64_t bytes = x->count * ITEM_BYTES[x->dtype];
    for (int r = 0; r < w->size; r++)
        if (r != w->rank) memcpy(w->data[r] + byte, w->data[w->rank] + byte, bytes);
}

/* The exchange of a short message that lies anywhere: every rank puts its part into
 * the window and combines all parts itself, so one meeting is enough. Parts go into
 * two places in turn: who is at this meeting has read what lay in the other one.
 * Returns as wait_for_all does, and goes on when called again. */
int window_exchange_short(struct window *w, struct exchange *x, char *buffer,
                          double timeout_s) {
    double start = now_s();
    uint64_t bytes = x->count * ITEM_BYTES[x->dtype];
    if (x->stage == IDLE) {
        x->wait_s = x->transfer_s = 0;
        memcpy(w->data[w->rank] + (w->met & 1) * x->offset, buffer, bytes);
        arrive(w);
        x->stage = GATHERING;
    }
    int gave_up = wait_for_all(w, timeout_s);
    double arrived = now_s();
    x->wait_s += arrived - start;
    if (gave_up) return gave_up;
    const char *parts[w->size];
    for (int r = 0; r < w->size; r++) parts[r] = w->data[r] + ((w->met - 1) & 1) * x->offset;
    KERNELS[x->dtype][x->operation](parts, w->size, &buffer, 1, x->count, x->scale);
    x->stage = IDLE;
    x->transfer_s = now_s() - arrived;
    return 0;
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
