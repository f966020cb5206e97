"""The file of a rank and that of its trace, byte by byte, as format.h lays them out."""

from __future__ import annotations

import numpy as np

from hvprof.format.bins import BUCKETS

MAGIC = b"hvprof\r\n"
VERSION = 4
# Formats that are read: 3 has no partners, and zeros where `usage` is.
READABLE = (3, 4)
NAMES, NAME_BYTES = 256, 48
COMMUNICATORS, STEPS, MOST_CELLS, BLOCKS = 128, 1024, 4096, 32
STATES = ("unfinished", "finalized", "exited")

STEP_TIMES = (
    *("start", "time", "compute", "exposed", "overlapped", "io", "other"),
    *("cpu", "queued", "queued_blocked", "communicating", "process"),
)
STEP_COUNTS = ("preemptions", "page_faults")
STEP = np.dtype(
    [
        ("index", "<u8"),
        *((f"{name}_ns", "<u8") for name in STEP_TIMES),
        *((name, "<u8") for name in STEP_COUNTS),
    ]
)
USAGE = np.dtype(
    [
        *((f"{name}_ns", "<u8") for name in ("finalize", "cpu", "queued", "process")),
        ("process_queued_ns", "<u8"),
        ("before_ns", "<u8"),
        ("after_ns", "<u8"),
        ("file_bytes", "<u8"),
        ("threads", "<u4"),
        ("calling_threads", "<u4"),
    ]
)
MACHINE = np.dtype(
    [
        ("mhz_sum", "<u8"),
        ("looks", "<u4"),
        ("periods", "<u4"),
        ("throttled", "<u4"),
        ("quota_millicores", "<u4"),
        ("tried_ns", "<u8"),
        ("trials_ns2", "<u8"),
        ("trials", "<u4"),
        ("unused", "<u4"),
    ]
)
OFFSET = np.dtype([("at_ns", "<u8"), ("offset_ns", "<i8"), ("error_ns", "<u8")])
HEADER = np.dtype(
    [
        ("magic", "V8"),
        ("version", "<u4"),
        ("state", "<u4"),
        ("rank", "<i4"),
        ("size", "<i4"),
        ("pid", "<i8"),
        ("start_unix_ns", "<u8"),
        ("end_unix_ns", "<u8"),
        ("start_clock_ns", "<u8"),
        ("dropped_calls", "<u8"),
        ("cost_ns", "<f8"),
        ("cells", "<u4"),
        ("communicators", "<u4"),
        ("trace_capacity", "<u8"),
        ("trace_calls", "<u8"),
        ("step_count", "<u8"),
        ("cache_hits", "<u8"),
        ("cache_misses", "<u8"),
        ("offsets", OFFSET, 2),
        ("all_steps", STEP),
        ("clock", "S64"),
        ("cache_source", "S64"),
        ("host", "S64"),
        ("library", "S384"),
        ("cores", "<u4"),
        ("host_cores", "<u4"),
        ("knows_queue", "<u4"),
        ("yields", "<u4"),
        ("usage", USAGE),
        ("machine", MACHINE),
        ("reserved", "V24"),
    ]
)
COMMUNICATOR = np.dtype(
    [("id", "<u8"), ("size", "<i4"), ("rank", "<i4"), ("name", "S64"), ("ranks", "S96")]
)
FIXED = np.dtype(
    [
        ("header", HEADER),
        ("names", f"S{NAME_BYTES}", NAMES),
        ("communicators", COMMUNICATOR, COMMUNICATORS),
        ("steps", STEP, STEPS),
    ]
)
CELL = np.dtype(
    [
        ("key", "<u8"),
        ("lock", "<u4"),
        ("block_shift", "<u4"),
        ("calls", "<u8"),
        ("bytes", "<u8"),
        ("time_ns", "<u8"),
        ("wait_ns", "<u8"),
        ("min_ns", "<u8"),
        ("max_ns", "<u8"),
        ("blocks_ns", "<u8", BLOCKS),
        ("histogram", "<u4", BUCKETS),
    ]
)
# The file of current calls.
CURRENT_MAGIC = b"hvpnow\r\n"
CURRENT_VERSION, SLOTS, LATEST, LATE, SUBMITTED, SENT = 4, 64, 8, 8, 2048, 32
IN_CALL, COORDINATION, COLLECTIVE_CALL, REPORTED, BY_NAME = 1, 2, 4, 8, 16
NO_PEER, ANY_PEER = -1, -2
SLOT = np.dtype(
    [
        ("changes", "<u8"),
        ("thread", "<u4"),
        ("flags", "<u4"),
        ("since_ns", "<u8"),
        ("bytes", "<u8"),
        ("number", "<u4"),
        ("operation", "<u2"),
        ("communicator", "<u2"),
        ("started", "<u2"),
        ("requests", "<u2"),
        ("peer", "<i4"),
        ("region_since_ns", "<u8"),
        ("region_kind", "<u4"),
        ("late_count", "<u4"),
        ("region", f"S{NAME_BYTES}"),
        ("late", "<i4", LATE),
        ("tag", "<u4"),
        ("about", "S108"),
    ]
)
# Signs of life.
CONNECTIONS, ADDRESSES, HOLDS_LOCK, NO_CARRIER = 16, 4, 1, 2
CONNECTION = np.dtype(
    [
        ("local", "V4"),
        ("remote", "V4"),
        ("stuck_ms", "<u4"),
        ("waited_ms", "<u4"),
        ("again", "<u4"),
        ("unsent_ms", "<u4"),
        ("queued_bytes", "<u8"),
        ("delivered_bytes", "<u8"),
        ("busy_ms", "<u4"),
        ("resent", "<u4"),
        ("acked_bytes", "<u8"),
    ]
)
BEAT = np.dtype(
    [
        ("changes", "<u8"),
        ("at_ns", "<u8"),
        ("state", "<u4"),
        ("flags", "<u4"),
        ("interface", "S16"),
        ("addresses", "V4", ADDRESSES),
        ("count", "<u4"),
        ("unused", "<u4"),
        ("connections", CONNECTION, CONNECTIONS),
    ]
)
MESSAGE = np.dtype(
    [
        ("bytes", "<u8"),
        ("to", "<i4"),
        ("tag", "<u4"),
        ("number", "<u4"),
        ("communicator", "<u4"),
    ]
)
CURRENT = np.dtype(
    [
        ("magic", "V8"),
        ("version", "<u4"),
        ("rank", "<i4"),
        ("processes", "S32"),
        ("reserved", "V80"),
        ("entered", "<u4", COMMUNICATORS),
        ("latest", "<u2", (COMMUNICATORS, LATEST)),
        ("slots", SLOT, SLOTS),
        ("submitted_end", "<u4"),
        ("unused", "<u4"),
        ("submitted", "<u4", SUBMITTED),
        ("beat", BEAT),
        ("sent_end", "<u4"),
        ("more_unused", "<u4"),
        ("sent", MESSAGE, SENT),
    ]
)
# The file of call sites.
SITES_MAGIC = b"hvpsite\n"
SITES_VERSION, SITES, OBJECTS, OBJECT_BYTES = 1, 1024, 64, 256
SITE = np.dtype(
    [
        ("key", "<u8"),
        ("offset", "<u8"),
        ("operation", "<u4"),
        ("object", "<u4"),
        ("calls", "<u8"),
        ("time_ns", "<u8"),
        ("max_ns", "<u8"),
        ("line", "<u4"),
        ("extension", "<u4"),
        ("reserved", "V8"),
    ]
)
SITES_FILE = np.dtype(
    [
        ("magic", "V8"),
        ("version", "<u4"),
        ("rank", "<i4"),
        ("reserved", "V48"),
        ("objects", f"S{OBJECT_BYTES}", OBJECTS),
        ("at", SITE, SITES),
    ]
)
# One call of a trace; the first place of the file is its head.
EVENT = np.dtype(
    [
        ("number", "<u8"),
        ("begin_ns", "<i8"),
        ("end_ns", "<i8"),
        ("wait_ns", "<i8"),
        ("key", "<u8"),
        ("bytes", "<u8"),
        ("sequence", "<u4"),
        ("thread", "<u4"),
        ("peer", "<i4"),
        ("queued_us", "<u4"),
    ]
)
