/* Writing a call into the trace. */
#ifndef HVPROF_TRACE_H
#define HVPROF_TRACE_H

#include <string.h>
#include <unistd.h>

#include "../recorder.h"

static uint32_t thread_id(void)
{
    static _Thread_local uint32_t id;
    if (!id)
        id = (uint32_t)gettid();
    return id;
}

/* Write a call into the ring of the trace, over the oldest. */
static void trace(struct recorder *into, struct event call)
{
    if (!into->trace)
        return;
    uint64_t number = atomic_fetch_add_explicit(&into->file->trace_calls, 1, memory_order_relaxed);
    struct event *place = &into->trace[number % into->file->trace_capacity];
    atomic_store_explicit(&place->number, 0, memory_order_relaxed);
    atomic_thread_fence(memory_order_release);
    call.number = 0;
    memcpy((char *)place + sizeof place->number, (char *)&call + sizeof call.number,
           sizeof call - sizeof call.number);
    atomic_store_explicit(&place->number, number + 1, memory_order_release);
}

#endif
