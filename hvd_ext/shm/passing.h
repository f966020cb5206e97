/* Ranks of a node pass each other messages that lie anywhere.
 *
 * A message goes in pieces. Of each piece every rank puts what it gives into its own memory, in
 * cells; all ranks meet; and every rank takes what it gets out of its peers' memory. Pieces
 * alternate between two places: who is ready with a ticket has taken all of the one before.
 *
 * Where ranks may read each other's processes, a long message is copied once: its giver puts the
 * address into its memory, and stays until all have read. If some rank could not, as the memory is
 * none that the kernel reads for others, all pass it in pieces.
 */
#ifndef HVD_EXT_PASSING_H
#define HVD_EXT_PASSING_H
#include <sys/uio.h>

struct pass {
    struct window *window;
    char *const *given;          /* by cell: what this rank gives */
    char *const *taken;          /* by rank: what it gets from each */
    const uint64_t *given_bytes; /* by cell; in all_to_all followed by taken_bytes */
    const uint64_t *taken_bytes; /* by rank */
    uint64_t *everyones;         /* out: all ranks' numbers of bytes, where they may differ; or NULL */
    uint64_t cells;              /* 1: all ranks take the same; size: each takes its own */
    uint64_t cell_bytes;         /* out: of a piece */
    uint64_t stride;             /* from one place to the other */
    uint64_t once_from;          /* so long a message is copied once; 0: none is */
    uint64_t longest;            /* bytes of the longest message, the same on all ranks */
    uint64_t ticket;             /* the last that is over */
    uint64_t at;                 /* bytes that are over, where it is to go on */
    double timeout_s;
    double scale;                /* of what is reduced */
    int32_t dtype, operation;    /* operation -1: all is taken as it is, else reduced into taken[0] */
};

/* A place begins with the numbers of bytes, whether this rank could not read some message, and the
 * addresses of messages; cells are behind. */
static uint64_t numbers_bytes(const struct pass *p) {
    return p->everyones ? 2 * p->window->size * sizeof(uint64_t) : 0;
}

static uint64_t head_bytes(const struct pass *p) {
    uint64_t addresses = p->once_from ? (1 + p->cells) * sizeof(char *) : 0;
    return (numbers_bytes(p) + addresses + LINE - 1) / LINE * LINE;
}

static char *place_of(const struct pass *p, int rank, uint64_t ticket) {
    return p->window->data[rank] + (ticket & 1) * p->stride;
}

static uint64_t *unread_of(const struct pass *p, int rank, uint64_t ticket) {
    return (uint64_t *)(place_of(p, rank, ticket) + numbers_bytes(p));
}

static char **addresses_of(const struct pass *p, int rank, uint64_t ticket) {
    return (char **)(unread_of(p, rank, ticket) + 1);
}

static char *cell_of(const struct pass *p, int rank, uint64_t cell, uint64_t ticket) {
    return place_of(p, rank, ticket) + head_bytes(p) + cell * p->cell_bytes;
}

static int is_copied_once(const struct pass *p, uint64_t bytes) {
    return p->once_from && bytes >= p->once_from;
}

/* How much of a message is in the cell of the piece that begins at `at`. */
static uint64_t in_piece(const struct pass *p, uint64_t bytes) {
    if (bytes <= p->at || is_copied_once(p, bytes)) return 0;
    return bytes - p->at < p->cell_bytes ? bytes - p->at : p->cell_bytes;
}

static void give(const struct pass *p, uint64_t ticket) {
    const struct window *w = p->window;
    if (p->everyones && p->at == 0)
        memcpy(place_of(p, w->rank, ticket), p->given_bytes, numbers_bytes(p));
    if (p->once_from) {
        *unread_of(p, w->rank, ticket) = 0;
        memcpy(addresses_of(p, w->rank, ticket), p->given, p->cells * sizeof(char *));
    }
    for (uint64_t cell = 0; cell < p->cells; cell++)
        if (p->cells == 1 || cell != (uint64_t)w->rank) /* its own it takes where it lies */
            copy_bytes(cell_of(p, w->rank, cell, ticket), p->given[cell] + p->at,
                       in_piece(p, p->given_bytes[cell]));
}

/* What the piece has for this rank from `rank`. */
static const char *passed(const struct pass *p, int rank, uint64_t ticket) {
    uint64_t own = p->cells == 1 ? 0 : (uint64_t)p->window->rank;
    return rank == p->window->rank ? p->given[own] + p->at : cell_of(p, rank, own, ticket);
}

/* Whether memory of a process could be read. */
int peer_read(int32_t pid, char *to, char *from, uint64_t bytes) {
    while (bytes) {
        struct iovec local = {to, bytes}, remote = {from, bytes};
        ssize_t count = process_vm_readv(pid, &local, 1, &remote, 1, 0);
        if (count <= 0) return 0;
        to += count, from += count, bytes -= (uint64_t)count;
    }
    return 1;
}

static enum outcome take_from(const struct pass *p, int r, uint64_t ticket) {
    const struct window *w = p->window;
    uint64_t bytes = p->taken_bytes[r];
    char *to = p->taken[r] + p->at;
    if (r != w->rank && is_copied_once(p, bytes)) {
        char *from = addresses_of(p, r, ticket)[p->cells == 1 ? 0 : w->rank];
        memset(w->missing, 0, (size_t)w->size);
        if (peer_read(w->pid[r], to, from, bytes)) return OVER;
        *unread_of(p, w->rank, ticket) = 1;
        w->missing[r] = errno == ESRCH;
        return w->missing[r] ? DIED : OVER;
    }
    if (r != w->rank || !p->once_from) bytes = in_piece(p, bytes);
    const char *from = passed(p, r, ticket);
    if (bytes && from != to) memmove(to, from, bytes);
    return OVER;
}

static enum outcome take(const struct pass *p, uint64_t ticket) {
    const struct window *w = p->window;
    if (p->operation < 0) {
        enum outcome found = OVER;
        for (int step = 0; step < w->size && found == OVER; step++)
            found = take_from(p, (w->rank + step) % w->size, ticket); /* none is everybody's first */
        return found;
    }
    const char *parts[w->size];
    char *out = p->taken[0] + p->at;
    for (int r = 0; r < w->size; r++) parts[r] = passed(p, r, ticket);
    KERNELS[p->dtype][p->operation](parts, w->size, &out, 1,
                                    in_piece(p, p->taken_bytes[0]) / ITEM_BYTES[p->dtype], p->scale);
    return OVER;
}

static int some_unread(const struct pass *p, uint64_t ticket) {
    for (int r = 0; r < p->window->size; r++)
        if (*unread_of(p, r, ticket)) return 1;
    return 0;
}

/* Whether each rank expects what every other gives to it; all ranks find the same. */
static int compare_numbers(struct pass *p, uint64_t ticket) {
    uint64_t size = (uint64_t)p->window->size;
    int same = 1;
    for (uint64_t r = 0; r < size; r++)
        memcpy(p->everyones + 2 * size * r, place_of(p, (int)r, ticket), numbers_bytes(p));
    for (uint64_t from = 0; from < size; from++)
        for (uint64_t to = 0; to < size; to++) {
            uint64_t bytes = p->everyones[2 * size * from + to];
            same &= bytes == p->everyones[2 * size * to + size + from];
            if (bytes > p->longest) p->longest = bytes;
        }
    return same;
}

/* Called again, where it gave up, it goes on. UNEQUAL, on all ranks: one gives another more or less
 * than that expects; nothing was taken. */
int window_pass(struct pass *p) {
    do {
        p->cell_bytes = (p->stride - head_bytes(p)) / p->cells / LINE * LINE;
        if (p->once_from > p->cell_bytes) p->once_from = p->cell_bytes; /* so there is one piece */
        uint64_t ticket = p->ticket + 1;
        if (reached(p->window, READY) < ticket) give(p, ticket);
        enum outcome gave_up = window_meet(p->window, ticket, p->timeout_s);
        if (gave_up) return gave_up;
        if (p->everyones && p->at == 0 && !compare_numbers(p, ticket)) {
            p->ticket = ticket;
            return UNEQUAL;
        }
        int stays = is_copied_once(p, p->longest);
        if (!stays || reached(p->window, DONE) < ticket) {
            gave_up = take(p, ticket);
            if (gave_up) return gave_up;
        }
        if (stays) {
            reach(p->window, DONE, ticket);
            gave_up = wait_for_all(p->window, DONE, ticket, p->timeout_s);
            if (gave_up) return gave_up;
        }
        p->ticket = ticket;
        if (stays && some_unread(p, ticket)) {
            p->once_from = 0;
            continue;
        }
        p->at += p->cell_bytes;
    } while (!p->once_from && p->at < p->longest);
    return OVER;
}

#endif
