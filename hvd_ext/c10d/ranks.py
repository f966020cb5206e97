"""The ranks of torch.distributed: `mpi://`, which MPI started, and a group's topology."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlparse

import torch.distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from hvd_ext import variables
from hvd_ext.c10d import without_mpi
from hvd_ext.c10d.collectives import SETTING
from hvd_ext.c10d.lifecycle import watch
from hvd_ext.c10d.store_comm import StoreComm
from hvd_ext.c10d.torch_internals import store_of, timeout_s_of
from hvd_ext.errors import UsageError
from hvd_ext.job.monitored_allgather import monitored_allgather
from hvd_ext.job.stalls import STALL_TIMEOUT, ends_after
from hvd_ext.job.topology import Topology, discover

if TYPE_CHECKING:
    from mpi4py import MPI

_LOOPBACK = "127.0.0.1"
# Made communicators, by the ranks of a group in MPI's numbers and in torch's.
_topologies: dict[tuple[tuple[int, ...], tuple[int, ...]], Topology] = {}


def rendezvous(
    url: str, timeout: timedelta = timedelta(minutes=30), **_: Any
) -> Iterator[tuple[Any, int, int]]:
    """Handle `init_method="mpi://"`: rank and size are MPI's, and rank 0 keeps the store.

    Args:
        url: the URL, with `rank` and `world_size`, if the program gives them.
        timeout: the process group's timeout.

    Yields:
        The store, the rank and the number of ranks; once.

    Raises:
        UsageError: the program gives another rank or size than MPI, or MPI did not start it.
        StallError: ranks did not reach this in time; names them.
    """
    if dist.is_torchelastic_launched():
        raise UsageError(
            "init_method='mpi://', where torchrun started the ranks: leave init_method out, or "
            "start the script with mpirun, srun or hvd-launch run"
        )
    from mpi4py import MPI

    watch()
    world = MPI.COMM_WORLD
    asked = {name: int(values[0]) for name, values in parse_qs(urlparse(url).query).items()}
    for name, value in (("rank", world.rank), ("world_size", world.size)):
        if asked.get(name, value) != value:
            raise UsageError(
                f"init_process_group({name}={asked[name]}), where MPI has {value}: leave out "
                "rank and world_size with init_method='mpi://'"
            )
    limit_s, setting = shorter_limit(timeout.total_seconds())
    occasion = "init_process_group()"
    hosts = monitored_allgather(world, socket.gethostname(), limit_s, occasion, setting=setting)
    # A machine need not know its own name.
    place = _LOOPBACK if len(set(hosts)) == 1 else hosts[0]
    store: Any = None
    if world.rank == 0:
        store = _serve(place, world.size, timeout)
    port = 0 if store is None else store.port
    port = monitored_allgather(world, port, limit_s, occasion, hosts, setting=setting)[0]
    if store is None:
        store = TCPStore(place, port, world.size, False, timeout)
    yield store, world.rank, world.size


def _serve(place: str, size: int, timeout: timedelta) -> Any:
    """Make the store; only this machine can reach it if all ranks are here."""
    port, listener = 0, None
    if place == _LOOPBACK:
        with socket.create_server((_LOOPBACK, 0)) as server:
            port, listener = server.getsockname()[1], server.detach()
    return TCPStore(
        *(_LOOPBACK, port, size, True, timeout),
        wait_for_workers=False,
        master_listen_fd=listener,
    )


def topology_of(group: dist.ProcessGroup) -> Topology:
    """The nodes and ranks of a process group; collective over it.

    Raises:
        UsageError: the ranks are on several nodes and MPI did not start them; or it did, and one
            of them is missing.
        StallError: ranks did not reach this in time; names them.
    """
    return topology_among(
        tuple(dist.get_process_group_ranks(group)),
        *(dist.get_rank(), dist.get_world_size()),
        occasion="hvd_ext.c10d.attach()",
        limit=limit_of(group),
        store=store_of(group),
    )


def limit_of(group: dist.ProcessGroup) -> tuple[float, str]:
    """Return how long hvd_ext's own exchanges wait for ranks, and the setting of that time."""
    return shorter_limit(timeout_s_of(group))


def shorter_limit(of_group_s: float) -> tuple[float, str]:
    """Return the shorter one of a group's timeout and HVD_EXT_STALL_TIMEOUT_S, and its name."""
    stall_s = variables.STALL_TIMEOUT_S.read()
    return (of_group_s, SETTING) if of_group_s < stall_s else (stall_s, STALL_TIMEOUT)


def topology_among(
    ranks: tuple[int, ...],
    rank: int,
    size: int,
    occasion: str,
    limit: tuple[float, str],
    store: Any,
) -> Topology:
    """Find the nodes of some ranks; collective over them.

    Args:
        ranks: their global numbers in torch.
        rank: global number of this rank.
        size: number of all ranks.
        occasion: what the ranks are about to do, for errors.
        limit: how long to wait for them, and the setting of that time.
        store: the group's store, for ranks that MPI did not start.

    Raises:
        UsageError: as `topology_of`.
        StallError: ranks did not reach this in time; names them.
    """
    watch()
    world = without_mpi.mpi_world(size)
    if world is None:
        return without_mpi.discover(store, ranks, rank, occasion, limit)
    if error := ends_after():
        raise UsageError(
            f"{occasion}: ranks that MPI started cannot continue without one of them, as those of "
            f"torchrun can: {error}"
        )
    members = _members(world, ranks, rank, occasion, limit, store)
    if (members, ranks) not in _topologies:
        _topologies[members, ranks] = _discover(world, members, ranks, occasion, limit)
    return _topologies[members, ranks]


def _members(
    world: MPI.Intracomm,
    ranks: tuple[int, ...],
    rank: int,
    occasion: str,
    limit: tuple[float, str],
    store: Any,
) -> tuple[int, ...]:
    """MPI's numbers of a group's ranks, in the group's order; collective over it."""
    if len(ranks) == world.size:  # all of MPI's ranks, which can meet without a store
        numbers = monitored_allgather(
            world, rank, limit[0], occasion, _known_hosts(world.size), setting=limit[1]
        )
        if sorted(numbers) != sorted(ranks):
            raise UsageError(
                f"{occasion}: the ranks call themselves {numbers}, and should be {sorted(ranks)}: "
                "give each process its own rank, or use init_method='mpi://'"
            )
        return tuple(numbers.index(number) for number in ranks)
    comm: Any = StoreComm(store, "hvd_ext/members", ranks.index(rank), len(ranks), limit[0])
    found = monitored_allgather(comm, world.rank, limit[0], occasion, ranks=ranks, setting=limit[1])
    return tuple(found)


def _known_hosts(size: int) -> Mapping[int, str]:
    """Return the hosts of all ranks by MPI's numbers, once a group of all has found them."""
    of_all = (
        dict(zip(members, topology.hosts, strict=True))
        for (members, _), topology in _topologies.items()
        if len(members) == size
    )
    return next(of_all, {})


def _discover(
    world: MPI.Intracomm,
    members: tuple[int, ...],
    ranks: tuple[int, ...],
    occasion: str,
    limit: tuple[float, str],
) -> Topology:
    part: Any = _Part(world, members)
    # MPI's own collectives, which follow, would hang.
    known = _known_hosts(world.size)
    hosts = {rank: known[member] for rank, member in zip(ranks, members, strict=True) if known}
    monitored_allgather(part, None, limit[0], occasion, hosts, ranks, limit[1])
    comm = world.Create_group(world.group.Incl(members))
    topology = discover(comm, limit[0], ranks)
    comm.Free()
    return topology


class _Part:
    """Some ranks of a communicator, with the methods that `monitored_allgather` needs."""

    def __init__(self, world: MPI.Intracomm, ranks: Sequence[int]) -> None:
        self._world, self._ranks = world, ranks
        self.rank, self.size = ranks.index(world.rank), len(ranks)

    def isend(self, payload: object, dest: int, tag: int) -> MPI.Request:
        return self._world.isend(payload, dest=self._ranks[dest], tag=tag)

    def irecv(self, buffer: Any = None, *, source: int, tag: int) -> MPI.Request:
        return self._world.irecv(buffer, source=self._ranks[source], tag=tag)
