/* The node-shared window: sums straight from the memory of the node's ranks.
 *
 * Every rank owns one region: a control block, then data at the same offsets on
 * every rank. Peers map it and read and write it in place.
 *
 * Exchanges are numbered by tickets that ascend in the same order on every rank. A
 * rank says by `ready` up to which ticket its own data is there, and by `done` up to
 * which it has reduced its shard for everybody. It reduces a shard once all ranks are
 * ready, and may use a result once all ranks are done. Nothing else is waited for:
 * ranks meet once at the end of many exchanges, not at each of them, so those that
 * share a core do not hand it to and fro.
 *
 * Called from Python through ctypes, which releases the GIL.
 */
#include "waiting.h" /* first: it asks for GNU's functions */

#include "copies.h"
#include "kernels/forms.h"

/* One exchange, planned once and run again with a new ticket each time. */
struct exchange {
    uint64_t offset;       /* bytes into every rank's data */
    uint64_t begin, count; /* this rank's shard, in elements from offset */
    int32_t dtype, operation;
    int32_t local; /* 1: the node is all there is, so the result goes out at once */
    double scale;  /* every element of a float result is multiplied by it */
    double transfer_s;
};

static void reduce_shard(const struct window *w, const struct exchange *x) {
    if (w->size == 1 && x->scale == 1.0) return; /* it is the sum of itself */
    uint64_t byte = x->offset + x->begin * ITEM_BYTES[x->dtype];
    char *at[w->size];
    for (int r = 0; r < w->size; r++) at[r] = w->data[r] + byte;
    kernel_of(x->dtype, x->operation)((const char *const *)at, w->size,
                                      x->local ? at : &at[w->rank], x->local ? w->size : 1,
                                      x->count, x->scale);
}

/* Say that this rank's data of all exchanges up to `ticket` is there. */
void window_ready(struct window *w, uint64_t ticket) {
    if (reached(w, READY) >= ticket) return;
    /* Two places are enough: who is ready with a ticket has compared the last but one. */
    w->control[w->rank]->collectives[ticket & 1] = w->collective;
    reach(w, READY, ticket);
}

static const struct collective *collective_of(const struct window *w, int rank, uint64_t ticket) {
    return &w->control[rank]->collectives[ticket & 1];
}

/* Say that this rank is ready with `ticket`, and wait until all ranks are: DIFFER if they are not
 * in the same collective. */
int window_meet(struct window *w, uint64_t ticket, double timeout_s) {
    window_ready(w, ticket);
    enum outcome gave_up = wait_for_all(w, READY, ticket, timeout_s);
    if (gave_up) return gave_up;
    for (int r = 0; r < w->size; r++) {
        const struct collective *theirs = collective_of(w, r, ticket);
        if (theirs->bytes != w->collective.bytes || theirs->about != w->collective.about) return DIFFER;
    }
    return OVER;
}

/* Once ranks have met: the collective that a rank is in. */
void window_collective_of(const struct window *w, int rank, uint64_t ticket, struct collective *out) {
    *out = *collective_of(w, rank, ticket);
}

/* Say that this rank will not reach the tickets from `first` to `last`, and wake who waits. */
void window_fail(struct window *w, uint64_t first, uint64_t last, const char *why) {
    struct control *own = w->control[w->rank];
    strncpy(own->why, why, WHY - 1);
    /* For those who come once this rank has gone on with a later ticket. */
    if (reached(w, READY) < first)
        own->collectives[first & 1] = (struct collective){UINT64_MAX, UINT64_MAX};
    atomic_store(&own->failed[1], last);
    atomic_store(&own->failed[0], first);
    for (int r = 0; r < w->size; r++) {
        atomic_fetch_add(&w->control[r]->bell, 1);
        futex_wake(&w->control[r]->bell);
    }
}

/* Why a rank has failed; at least 512 bytes. */
void window_why(const struct window *w, int rank, char *out) {
    memcpy(out, w->control[rank]->why, WHY);
    out[WHY - 1] = 0;
}

/* Wait until all ranks are done with all exchanges up to `ticket`. */
int window_finish(struct window *w, uint64_t ticket, double timeout_s) {
    return wait_for_all(w, DONE, ticket, timeout_s);
}

/* Reduce this rank's shard: OVER if it is with all ranks now, REDUCED if the caller
 * is to take it between nodes and then to call window_publish and window_done. */
int window_reduce(struct window *w, struct exchange *x, uint64_t ticket, double timeout_s) {
    enum outcome gave_up = window_meet(w, ticket, timeout_s);
    if (gave_up) return gave_up;
    double begun = now_s();
    reduce_shard(w, x);
    if (x->local) reach(w, DONE, ticket);
    x->transfer_s = now_s() - begun;
    return x->local ? OVER : REDUCED;
}

/* Give the node's other ranks this rank's shard, which has come from other nodes. */
void window_publish(struct window *w, const struct exchange *x) {
    uint64_t byte = x->offset + x->begin * ITEM_BYTES[x->dtype];
    uint64_t bytes = x->count * ITEM_BYTES[x->dtype];
    for (int r = 0; r < w->size; r++)
        if (r != w->rank) memcpy(w->data[r] + byte, w->data[w->rank] + byte, bytes);
}

/* Say that this rank's shards of all exchanges up to `ticket` are published. */
void window_done(struct window *w, uint64_t ticket) { reach(w, DONE, ticket); }

/* A single exchange, from end to end, without a look at the clock, which takes a tenth of the
 * time of a short one. As those below, it is called again with its ticket where it gave up: what
 * this rank has reached says how far it came. */
static int exchange_all(struct window *w, const struct exchange *x, uint64_t ticket,
                        double timeout_s) {
    if (reached(w, DONE) < ticket) {
        enum outcome gave_up = window_meet(w, ticket, timeout_s);
        if (gave_up) return gave_up;
        reduce_shard(w, x);
        reach(w, DONE, ticket);
    }
    return wait_for_all(w, DONE, ticket, timeout_s);
}

/* Where a rank's part of a short message lies: in two places alternately. Who is ready with
 * this ticket has read what lay in the other place. The shortest lies beside the ticket, so that
 * one cache line goes from each rank to each other. */
static char *part_of(const struct window *w, const struct exchange *x, int rank, uint64_t ticket) {
    if (x->count * ITEM_BYTES[x->dtype] <= PAYLOAD) return w->control[rank]->line[ticket & 1].part;
    return w->data[rank] + (ticket & 1) * x->offset;
}

/* The exchange of a short message that lies anywhere: every rank puts its part into
 * the window and combines all parts itself, so it is enough that all are ready. */
static int one_shot(struct window *w, struct exchange *x, char *buffer, uint64_t ticket,
                    double timeout_s) {
    uint64_t bytes = x->count * ITEM_BYTES[x->dtype];
    enum mark mark = bytes > PAYLOAD ? READY : ticket & 1 ? ODD : EVEN;
    if (reached(w, mark) < ticket) {
        copy_bytes(part_of(w, x, w->rank, ticket), buffer, bytes);
        reach(w, mark, ticket);
    }
    enum outcome gave_up = wait_for_all(w, mark, ticket, timeout_s);
    if (gave_up) return gave_up;
    const char *parts[w->size];
    for (int r = 0; r < w->size; r++) parts[r] = part_of(w, x, r, ticket);
    KERNELS[x->dtype][x->operation](parts, w->size, &buffer, 1, x->count, x->scale);
    return OVER;
}

/* Combine the shard from `begin` to `end` of a piece, its own part where it lies and the others in
 * the peers' windows. A peer's line is read and then written, and a core that asks twice for it
 * waits twice: it is asked for so as to be written, AHEAD bytes before it is needed. Kernels of 16
 * bits, which do most with a line, have the fewest of them under way without that. */
static void combine_shard(const struct window *w, const struct exchange *x, char *piece,
                          uint64_t place, uint64_t begin, uint64_t end) {
    enum { AHEAD = 8 * LINE };
    for (uint64_t from = begin; from < end; from += AHEAD) {
        uint64_t to = end - from < AHEAD ? end : from + AHEAD;
        uint64_t next = end - to < AHEAD ? end : to + AHEAD;
        char *at[w->size];
        for (int r = 0; r < w->size; r++) {
            at[r] = (r == w->rank ? piece : w->data[r] + place) + from;
            if (r == w->rank) continue;
            for (uint64_t line = to; line < next; line += LINE)
                __builtin_prefetch(w->data[r] + place + line, 1);
        }
        KERNELS[x->dtype][x->operation]((const char *const *)at, w->size, at, w->size,
                                        (to - from) / ITEM_BYTES[x->dtype], x->scale);
    }
}

/* A piece of a message that lies anywhere, `bytes` long: its peers' shards go into this rank's
 * window. Every rank combines its own shard, which it reads from its own piece, and writes the
 * result there and into its peers' windows. A result is written, not fetched: a core waits for
 * what it reads from another. One place is enough for these alone: a rank writes there again once
 * all are done, and with the next ticket none writes to it before it is ready. */
static int push_piece(struct window *w, const struct exchange *x, char *piece, uint64_t bytes,
                      uint64_t place, uint64_t ticket, double timeout_s) {
    char *own = w->data[w->rank] + place;
    uint64_t lines = (bytes + LINE - 1) / LINE;
    uint64_t begin = lines * w->rank / w->size * LINE;
    uint64_t end = lines * (w->rank + 1) / w->size * LINE;
    if (begin > bytes) begin = bytes;
    if (end > bytes) end = bytes;
    if (reached(w, READY) < ticket) {
        memcpy(own, piece, begin);
        memcpy(own + end, piece + end, bytes - end);
    }
    if (reached(w, DONE) < ticket) {
        enum outcome gave_up = window_meet(w, ticket, timeout_s);
        if (gave_up) return gave_up;
        combine_shard(w, x, piece, place, begin, end);
        reach(w, DONE, ticket);
    }
    enum outcome gave_up = wait_for_all(w, DONE, ticket, timeout_s);
    if (gave_up) return gave_up;
    memcpy(piece, own, begin);
    memcpy(piece + end, own + end, bytes - end);
    return OVER;
}

/* An exchange that a window repeats. One argument, because each costs a short call
 * from Python a tenth of its time. */
struct call {
    struct window *window;
    struct exchange *exchange;
    char *buffer;    /* a message's that lies anywhere; NULL: it is in the window */
    uint64_t ticket; /* the last that is over */
    double timeout_s;
    uint64_t piece; /* bytes of a long message that go at once; 0: it is short, in one shot */
    uint64_t at;    /* bytes of a long message that are done, where it is to go on */
    uint64_t stride; /* from one of the two places that other exchanges use too to the other; 0:
                        the window is this one's alone */
};

/* The exchange of a long message that lies anywhere, in pieces that stay in the cache. */
static int push(struct call *c) {
    const uint64_t bytes = c->exchange->count * ITEM_BYTES[c->exchange->dtype];
    for (; c->at < bytes; c->at += c->piece) {
        uint64_t n = bytes - c->at < c->piece ? bytes - c->at : c->piece;
        uint64_t ticket = c->ticket + 1, place = (ticket & 1) * c->stride;
        enum outcome gave_up =
            push_piece(c->window, c->exchange, c->buffer + c->at, n, place, ticket, c->timeout_s);
        if (gave_up) return gave_up;
        c->ticket++;
    }
    c->at = 0;
    return OVER;
}

/* As one_shot, in a window that other exchanges use, whose collectives ranks compare. */
static int one_shot_of_many(struct call *c, uint64_t ticket) {
    struct window *w = c->window;
    struct exchange *x = c->exchange;
    uint64_t place = (ticket & 1) * c->stride;
    if (reached(w, READY) < ticket)
        copy_bytes(w->data[w->rank] + place, c->buffer, x->count * ITEM_BYTES[x->dtype]);
    enum outcome gave_up = window_meet(w, ticket, c->timeout_s);
    if (gave_up) return gave_up;
    const char *parts[w->size];
    for (int r = 0; r < w->size; r++) parts[r] = w->data[r] + place;
    KERNELS[x->dtype][x->operation](parts, w->size, &c->buffer, 1, x->count, x->scale);
    return OVER;
}

int window_call(struct call *c) {
    if (c->piece) return push(c);
    uint64_t ticket = c->ticket + 1;
    enum outcome gave_up =
        c->stride   ? one_shot_of_many(c, ticket)
        : c->buffer ? one_shot(c->window, c->exchange, c->buffer, ticket, c->timeout_s)
                    : exchange_all(c->window, c->exchange, ticket, c->timeout_s);
    if (!gave_up) c->ticket = ticket;
    return gave_up;
}

#include "passing.h"

/* Flags beside data that ranks share: `flags.py`. */
void flag_raise(_Atomic uint8_t *flag) { atomic_store_explicit(flag, 1, memory_order_release); }

int flag_is_raised(_Atomic uint8_t *flag) {
    return atomic_load_explicit(flag, memory_order_acquire);
}

void word_write(_Atomic uint64_t *word, uint64_t value) {
    atomic_store_explicit(word, value, memory_order_release);
}

uint64_t word_read(_Atomic uint64_t *word) {
    return atomic_load_explicit(word, memory_order_acquire);
}
