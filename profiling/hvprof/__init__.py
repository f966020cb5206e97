"""hvprof: records the communication of an MPI or Horovod job, and shows where its time goes.

Example::

    recording = hvprof.load("runs/demo/default")
    recording.time_s("allreduce")  # seconds of a rank, mean over the ranks
    for row in hvprof.rows(recording, "data"):
        print(row.operation, row.message_size, row.calls, row.busbw_gb_s)
"""

from __future__ import annotations

from hvprof.analysis.analysis import Analysis
from hvprof.analysis.comparison.comparison import Comparison, compare
from hvprof.analysis.summary import SIZE_ROWS, Exposed, Row, exposed, quantile_s, rows
from hvprof.analysis.waiting.wait_time import waiting
from hvprof.annotate import get_include, region, step, watch_exchange
from hvprof.format.trace import load_trace
from hvprof.model import Cell, RankRecording, Recording
from hvprof.recording.load import load

__all__ = [
    "SIZE_ROWS",
    "Analysis",
    "Cell",
    "Comparison",
    "Exposed",
    "RankRecording",
    "Recording",
    "Row",
    "compare",
    "exposed",
    "get_include",
    "load",
    "load_trace",
    "quantile_s",
    "region",
    "rows",
    "step",
    "waiting",
    "watch_exchange",
]
