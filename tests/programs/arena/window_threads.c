/* Threads take the place of a node's ranks: every kind of exchange of the window, many times.
 *
 * For the thread sanitizer (toolchain/sanitize.py), which sees whether memory that ranks share is
 * written and read in an order that the window's tickets guarantee. Sums are checked. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "window.c"

enum { RANKS = 3, ROUNDS = 200, SHORTEST = PAYLOAD / 4, SHORT = 64, LONG = 5000, PLACE = 4096 };

static struct control control[RANKS];
static struct control *controls[RANKS];
static char *data[RANKS];
static int32_t pids[RANKS];
static pthread_barrier_t start;

static void check(int outcome, const float *values, int count, float expected, const char *what)
{
    if (outcome != OVER) {
        fprintf(stderr, "%s: outcome %d\n", what, outcome);
        exit(1);
    }
    for (int i = 0; i < count; i++)
        if (values[i] != expected) {
            fprintf(stderr, "%s: element %d is %g, not %g\n", what, i, values[i], expected);
            exit(1);
        }
}

static void *rank(void *number)
{
    int me = (int)(intptr_t)number;
    uint8_t missing[RANKS];
    struct window w = {me, RANKS, controls, data, pids, missing, {0, 0}};
    static float buffers[RANKS][LONG];
    float *buffer = buffers[me];
    uint64_t ticket = 0;
    pthread_barrier_wait(&start);
    for (int round = 0; round < ROUNDS; round++) {
        float mine = (float)(me + round), sum = 0;
        for (int r = 0; r < RANKS; r++) sum += (float)(r + round);
        /* Anywhere: short, in one shot; long, in pieces. */
        struct exchange x = {.offset = PLACE, .count = SHORT, .local = 1, .scale = 1};
        struct call c = {&w, &x, (char *)buffer, ticket, 60, 0, 0};
        for (int i = 0; i < SHORT; i++) buffer[i] = mine;
        check(window_call(&c), buffer, SHORT, sum, "one shot");
        /* So short that it lies beside its ticket, again and again. */
        x.count = SHORTEST;
        for (int again = 0; again < 4; again++) {
            for (int i = 0; i < SHORTEST; i++) buffer[i] = mine;
            check(window_call(&c), buffer, SHORTEST, sum, "beside the ticket");
        }
        x.count = LONG;
        c.piece = PLACE;
        for (int i = 0; i < LONG; i++) buffer[i] = mine;
        check(window_call(&c), buffer, LONG, sum, "push");
        /* The same among other exchanges, in two places that all of them use alternately. */
        c.stride = PLACE;
        for (int i = 0; i < LONG; i++) buffer[i] = mine;
        check(window_call(&c), buffer, LONG, sum, "push among others");
        x.count = SHORT;
        c.piece = 0;
        for (int again = 0; again < 3; again++) {
            for (int i = 0; i < SHORT; i++) buffer[i] = mine;
            check(window_call(&c), buffer, SHORT, sum, "one shot among others");
        }
        /* In the window: ready first, reduced later, as a bucket of gradients is. */
        float *own = (float *)(data[me] + 2 * PLACE);
        for (int i = 0; i < LONG; i++) own[i] = mine;
        ticket = c.ticket + 1;
        window_ready(&w, ticket);
        uint64_t begin = (uint64_t)LONG * (uint64_t)me / RANKS;
        uint64_t end = (uint64_t)LONG * (uint64_t)(me + 1) / RANKS;
        struct exchange a = {2 * PLACE, begin, end - begin, .local = 1, .scale = 1};
        if (window_reduce(&w, &a, ticket, 60) != OVER) exit(1);
        check(window_finish(&w, ticket, 60), own, LONG, sum, "arena");
        /* Nobody writes there again before all have looked. */
        ticket++;
        if (window_meet(&w, ticket, 60) != OVER) exit(1);
        /* The same, where a rank's shard travels between nodes before it is published. */
        for (int i = 0; i < LONG; i++) own[i] = mine;
        a.local = 0;
        ticket++;
        if (window_reduce(&w, &a, ticket, 60) != REDUCED) exit(1);
        window_publish(&w, &a);
        window_done(&w, ticket);
        check(window_finish(&w, ticket, 60), own, LONG, sum, "between nodes");
        ticket++;
        if (window_meet(&w, ticket, 60) != OVER) exit(1);
        /* Each rank in another collective, which every rank then reads. */
        w.collective.bytes = (uint64_t)me;
        ticket++;
        if (window_meet(&w, ticket, 60) != DIFFER) exit(1);
        for (int r = 0; r < RANKS; r++) {
            struct collective theirs;
            window_collective_of(&w, r, ticket, &theirs);
            if (theirs.bytes != (uint64_t)r) exit(1);
        }
        w.collective.bytes = 0;
    }
    /* The first rank will not come, and says why. */
    char why[WHY];
    ticket++;
    if (me == 0) {
        window_fail(&w, ticket, ticket, "no memory");
    } else {
        if (window_meet(&w, ticket, 60) != FAILED || !missing[0] || missing[1]) exit(1);
        window_why(&w, 0, why);
        if (strcmp(why, "no memory")) exit(1);
    }
    return NULL;
}

int main(void)
{
    pthread_t threads[RANKS];
    pthread_barrier_init(&start, NULL, RANKS);
    for (int r = 0; r < RANKS; r++) {
        controls[r] = &control[r];
        data[r] = calloc(1, 2 * PLACE + LONG * sizeof(float));
        pids[r] = getpid();
    }
    for (int r = 0; r < RANKS; r++)
        pthread_create(&threads[r], NULL, rank, (void *)(intptr_t)r);
    for (int r = 0; r < RANKS; r++) pthread_join(threads[r], NULL);
    puts("window: no race");
    return 0;
}
