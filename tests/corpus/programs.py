"""The list of programs, with the cause of each."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Program:
    """One program of a folder, `known`, `held_out` or `patterns`.

    Attributes:
        ranks: of the job; over all hosts.
        kinds: kinds of cause that name it (hvprof.analysis.causes.kinds); "background" for none,
            of a program whose exchanges run on separate threads.
        blamed: the ranks that the others wait for.
        hosts: emulated hosts; 0 for this machine as it is.
        gbit: the speed of their links.
        variables: of the job.
        advice: words of the verdict that `advised/FOLDER/NAME.py` follows; empty for none to try.
        advised_ranks: number of ranks as advised; 0 for the same.
    """

    folder: str
    name: str
    ranks: int
    kinds: tuple[str, ...]
    blamed: tuple[int, ...] = ()
    hosts: int = 0
    gbit: float = 1.0
    variables: dict[str, str] = field(default_factory=dict)
    advice: str = ""
    advised_ranks: int = 0


_LESS = "give rank {} less work"
_SOONER = "let ranks begin without the result of the one before"
_ALL_RANKS = "let all ranks read and write a part"
_LARGER = "send fewer and larger messages"
_FEWER_BYTES = "send fewer bytes"

PROGRAMS = (
    Program("known", "imbalance", 4, ("late rank",), (2,), advice=_LESS.format(2)),
    Program("known", "late_sender", 2, ("late sender",), (0,), advice=_LESS.format(0)),
    Program("known", "late_receiver", 2, ("late receiver",), (1,), advice=_LESS.format(1)),
    Program("known", "serial_ring", 4, ("serial",), advice=_SOONER),
    Program(
        *("known", "alltoall_on_slow_links", 2, ("transfer",)),
        hosts=2,
        gbit=0.1,
        advice=_FEWER_BYTES,
    ),
    Program("known", "slow_master", 4, ("late sender",), (0,), advice=_LESS.format(0)),
    Program("known", "small_messages", 2, ("small messages",), advice=_LARGER),
    Program(
        *("known", "threads", 2, ("threads share cores",)),
        advice="give each rank fewer threads",
    ),
    Program(
        *("known", "too_many_ranks", 4, ("ranks share cores",)),
        advice="start as many ranks as there are cores",
        advised_ranks=2,
    ),
    Program("known", "write_on_one_rank", 4, ("files",), (0,), advice=_ALL_RANKS),
    Program("known", "healthy_halo", 2, ("light",)),
    Program("known", "horovod_stock", 2, ("background",)),
    Program("held_out", "chain", 3, ("late sender",), (2,), advice=_LESS.format(2)),
    Program("held_out", "slow_node", 4, ("host",), (2, 3), hosts=2),
    Program("held_out", "late_root", 4, ("late rank",), (0,), advice=_LESS.format(0)),
    Program(
        *("held_out", "late_receiver_waitall", 3, ("late receiver",), (1,)),
        advice=_LESS.format(1),
    ),
    Program("held_out", "pipeline_of_barriers", 4, ("serial",), advice=_SOONER),
    Program(
        *("held_out", "halo_on_slow_links", 2, ("transfer",)),
        hosts=2,
        gbit=0.1,
        advice="send fewer bytes, or overlap them with computation",
    ),
    Program("held_out", "healthy_master", 4, ("spare rank",)),
    Program("held_out", "turns", 4, ("turns",), advice="wait less often: fewer collectives"),
    Program("held_out", "small_allreduces", 2, ("small messages",), advice=_LARGER),
    Program("held_out", "read_on_one_rank", 4, ("files",), (0,), advice=_ALL_RANKS),
    Program("held_out", "healthy_allreduce", 2, ("light",)),
    Program("held_out", "horovod_tuned", 2, ("background",), variables={"HOROVOD_CYCLE_TIME": "5"}),
    Program(
        *("patterns", "pipeline_fill", 4, ("pipeline",)),
        advice="split the work into more and smaller pieces",
    ),
    Program(
        *("patterns", "coarse_pieces", 4, ("pieces",)),
        advice="hand out more and smaller pieces of work",
    ),
    Program("patterns", "alternating_roots", 4, ("roots",), advice="let the next root prepare"),
    Program("patterns", "needless_barriers", 4, ("barriers",), advice="synchronize less often"),
    Program("patterns", "chained_sends", 6, ("send chain",), advice="start all messages before"),
    Program("patterns", "alltoall_on_part", 4, ("apart",), (0, 1)),
    Program("patterns", "strided_type", 2, ("derived type",)),
)
