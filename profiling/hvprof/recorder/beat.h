/* Signs of life: a thread notes four times a second what the first one does. Every two seconds,
 * and each time for as long as a call lasts, it also notes what the TCP connections to other hosts
 * have delivered and what waits in them.
 *
 * hvprof on another host sees no process of this one. It sees here whether the process lives, which
 * holds a lock on the file, and whether it runs, as the signs follow each other.
 */
#ifndef HVPROF_BEAT_H
#define HVPROF_BEAT_H

#include <dirent.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <linux/sockios.h>
#include <linux/tcp.h>
#include <net/if.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "machine.h"
#include "recorder.h"
#include "wrappers/late.h"

enum { BEAT_MS = 250, LASTING_MS = 300, WATCHED = 64, MOST_SOCKETS = 4096, LOOKS_EVERY = 8 };

/* What was seen of a connection before. */
struct watched {
    int socket;
    uint32_t remote, again;
    uint64_t bytes, delivered_bytes; /* acknowledged, and of that while data waited */
    uint64_t moved_ns, seen_ns, waited_ns, unsent_ns;
    uint64_t limited_us; /* by the peer's window */
    bool waits, unsent;
};

static bool is_ipv4_of_another(const struct sockaddr_in *address)
{
    return address->sin_family == AF_INET && ntohl(address->sin_addr.s_addr) >> 24 != 127;
}

static struct watched *watched_before(struct watched *table, int socket, uint32_t remote)
{
    struct watched *oldest = table;
    for (int i = 0; i < WATCHED; i++) {
        if (table[i].seen_ns && table[i].socket == socket && table[i].remote == remote)
            return &table[i];
        if (table[i].seen_ns < oldest->seen_ns)
            oldest = &table[i];
    }
    *oldest = (struct watched){.socket = socket, .remote = remote};
    return oldest;
}

static void note_address(struct beat *made, uint32_t address)
{
    int i = 0;
    while (i < ADDRESSES && made->addresses[i] && made->addresses[i] != address)
        i++;
    if (i < ADDRESSES)
        made->addresses[i] = address;
}

static bool has_address(const struct beat *made, const struct sockaddr *address)
{
    for (int i = 0; i < ADDRESSES; i++)
        if (address && address->sa_family == AF_INET && made->addresses[i] &&
            ((const struct sockaddr_in *)address)->sin_addr.s_addr == made->addresses[i])
            return true;
    return false;
}

/* The list has room for some connections: those on which data waited longest come first, then those
 * that delivered most. */
static void list_connection(struct beat *made, const struct connection *found)
{
    struct connection *least = &made->connections[0];
    if (made->count < CONNECTIONS) {
        made->connections[made->count++] = *found;
        return;
    }
    for (struct connection *one = least; one < made->connections + CONNECTIONS; one++)
        if (one->waited_ms < least->waited_ms ||
            (one->waited_ms == least->waited_ms && one->acked_bytes < least->acked_bytes))
            least = one;
    if (found->waited_ms > least->waited_ms ||
        (found->waited_ms == least->waited_ms && found->acked_bytes > least->acked_bytes))
        *least = *found;
}

/* Looks at a socket, and lists it where it is a connection that was ever used. */
static void look_at(int socket, struct watched *table, uint64_t now_ns, struct beat *made)
{
    struct sockaddr_in here = {0}, there = {0};
    socklen_t size = sizeof there;
    struct tcp_info info = {0};
    int queued = 0;
    if (getpeername(socket, (struct sockaddr *)&there, &size) || !is_ipv4_of_another(&there))
        return;
    size = sizeof here;
    getsockname(socket, (struct sockaddr *)&here, &size);
    note_address(made, here.sin_addr.s_addr);
    size = sizeof info;
    if (getsockopt(socket, IPPROTO_TCP, TCP_INFO, &info, &size) || ioctl(socket, SIOCOUTQ, &queued))
        return;
    struct watched *before = watched_before(table, socket, there.sin_addr.s_addr);
    /* The host's own queue drops packets: none is on its way that could be sent again. */
    bool unsent = queued > 0 && info.tcpi_notsent_bytes && !info.tcpi_unacked;
    uint64_t since_ns = now_ns - before->seen_ns;
    if (!before->seen_ns) {
        before->again = info.tcpi_total_retrans;
    } else if (before->waits && queued > 0) {
        before->waited_ns += since_ns;
        if (before->unsent && unsent &&
            (info.tcpi_rwnd_limited - before->limited_us) * 2000 < since_ns)
            before->unsent_ns += since_ns;
        before->delivered_bytes += info.tcpi_bytes_acked - before->bytes;
    }
    if (!before->seen_ns || info.tcpi_bytes_acked != before->bytes || queued <= 0)
        before->moved_ns = now_ns;
    before->bytes = info.tcpi_bytes_acked;
    before->seen_ns = now_ns;
    before->waits = queued > 0;
    before->unsent = unsent;
    before->limited_us = info.tcpi_rwnd_limited;
    struct connection found = {
        .local = here.sin_addr.s_addr,
        .remote = there.sin_addr.s_addr,
        .stuck_ms = (uint32_t)((now_ns - before->moved_ns) / 1000000),
        .waited_ms = (uint32_t)(before->waited_ns / 1000000),
        .again = info.tcpi_total_retrans - before->again,
        .unsent_ms = (uint32_t)(before->unsent_ns / 1000000),
        .queued_bytes = queued > 0 ? (uint64_t)queued : 0,
        .delivered_bytes = before->delivered_bytes,
        /* What waits for a peer that does not read is not the link's. */
        .busy_ms = (uint32_t)((info.tcpi_busy_time - info.tcpi_rwnd_limited) / 1000),
        .resent = info.tcpi_total_retrans,
        .acked_bytes = info.tcpi_bytes_acked,
    };
    if (queued > 0 || found.waited_ms || found.busy_ms || found.resent)
        list_connection(made, &found);
}

static void look_at_connections(struct watched *table, uint64_t now_ns, struct beat *made)
{
    DIR *descriptors = opendir("/proc/self/fd");
    struct dirent *one;
    int looked = 0;
    while (descriptors && looked++ < MOST_SOCKETS && (one = readdir(descriptors)))
        if (one->d_name[0] != '.')
            look_at(atoi(one->d_name), table, now_ns, made);
    if (descriptors)
        closedir(descriptors);
}

/* An interface of its connections that is up and has no carrier. */
static void look_at_carrier(struct beat *made)
{
    struct ifaddrs *all = NULL;
    if (getifaddrs(&all))
        return;
    for (struct ifaddrs *one = all; one; one = one->ifa_next)
        if (has_address(made, one->ifa_addr) && one->ifa_flags & IFF_UP &&
            !(one->ifa_flags & IFF_RUNNING)) {
            made->flags |= NO_CARRIER;
            strncpy(made->interface, one->ifa_name, sizeof made->interface - 1);
        }
    freeifaddrs(all);
}

/* When the call began that has lasted longest, or 0. Threads write their slots meanwhile: a look
 * that misses a call sees it in the next beat. */
__attribute__((no_sanitize("thread"))) static uint64_t lasting_since(const struct current *current,
                                                                     uint64_t now_ns)
{
    uint64_t first_ns = now_ns - LASTING_MS * UINT64_C(1000000);
    for (int i = 0; i < SLOTS; i++) {
        const struct slot *slot = &current->slots[i];
        if (slot->thread && slot->flags & IN_CALL && slot->since_ns < first_ns)
            first_ns = slot->since_ns;
    }
    return first_ns == now_ns - LASTING_MS * UINT64_C(1000000) ? 0 : first_ns;
}

struct first_thread {
    uint32_t state;
    int core; /* where it ran last; -1: not known */
};

static struct first_thread first_thread_now(void)
{
    struct first_thread found = {.core = -1};
    char text[1024] = "", state = 0;
    int file = open("/proc/self/stat", O_RDONLY | O_CLOEXEC);
    ssize_t length = file < 0 ? 0 : read(file, text, sizeof text - 1);
    char *rest = length > 0 ? strrchr(text, ')') : NULL;
    if (file >= 0)
        close(file);
    if (!rest || sscanf(rest + 1, " %c", &state) != 1)
        return found;
    found.state = (uint32_t)state;
    rest += 2;
    /* The state is the third word, the core the 39th. */
    for (int word = 3; rest && word < 39; word++)
        rest = strchr(rest + 1, ' ');
    if (rest)
        found.core = atoi(rest);
    return found;
}

/* Released by the kernel as the process ends, whatever ends it. */
static bool hold_lock(int descriptor)
{
    struct flock whole = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    return !fcntl(descriptor, F_SETLK, &whole);
}

static void write_beat(struct beat *into, const struct beat *made)
{
    uint64_t changes = atomic_load_explicit(&into->changes, memory_order_relaxed);
    atomic_store_explicit(&into->changes, changes + 1, memory_order_relaxed);
    atomic_thread_fence(memory_order_release);
    memcpy((char *)into + sizeof into->changes, (const char *)made + sizeof made->changes,
           sizeof *into - sizeof into->changes);
    atomic_store_explicit(&into->changes, changes + 2, memory_order_release);
}

/* What a connection has of a call that lasts. */
static void forget_waiting(struct connection *one)
{
    one->stuck_ms = one->waited_ms = one->again = one->unsent_ms = 0;
    one->queued_bytes = one->delivered_bytes = 0;
}

static void *keep_beating(void *argument)
{
    struct recorder *into = argument;
    struct watched *table = calloc(WATCHED, sizeof *table);
    struct beat made = {0};
    uint64_t since_ns = 0;
    bool locked = hold_lock(into->current_descriptor);
    atomic_store(&beating_thread, (uint64_t)gettid());
    for (unsigned number = 0; table && atomic_load(&into->file->state) == RUNNING; number++) {
        struct first_thread first = first_thread_now();
        bool looks = number % LOOKS_EVERY == 0;
        uint64_t before_ns = since_ns;
        made.at_ns = clock_ns(CLOCK_MONOTONIC);
        made.state = first.state;
        made.flags = (made.flags & NO_CARRIER) | (locked ? HOLDS_LOCK : 0);
        since_ns = lasting_since(into->current, made.at_ns);
        if (since_ns != before_ns)
            memset(table, 0, WATCHED * sizeof *table);
        /* Others know this host by its addresses, also where no call lasts here. */
        if (since_ns || looks) {
            made.flags &= ~(uint32_t)NO_CARRIER;
            memset(made.interface, 0, sizeof made.interface);
            made.count = 0;
            look_at_connections(table, made.at_ns, &made);
            look_at_carrier(&made);
        }
        for (uint32_t i = 0; !since_ns && i < made.count; i++)
            forget_waiting(&made.connections[i]);
        look_at_quota(&into->file->machine);
        if (looks) {
            look_at_clock(&into->file->machine, first.core);
            note_run_usage(into->file);
        }
        write_beat(&into->current->beat, &made);
        if (atomic_load(&late_are_known))
            lead_calls();
        usleep(BEAT_MS * 1000);
    }
    free(table);
    return NULL;
}

/* The program's signals are for its own threads. */
static void start_beating(struct recorder *into)
{
    pthread_attr_t attributes;
    pthread_t thread;
    sigset_t all, before;
    if (!into->current || pthread_attr_init(&attributes))
        return;
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&attributes, 256 << 10);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    atomic_store(&beats, true); /* before the thread counts itself */
    if (pthread_create(&thread, &attributes, keep_beating, into))
        atomic_store(&beats, false);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
}

#endif
