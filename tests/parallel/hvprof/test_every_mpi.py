"""hvprof's recorder under every MPI that is here, with programs in C whose traffic is known."""

from __future__ import annotations

import os
import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

import hvprof
from hvprof.analysis.causes.finding import find_cause
from hvprof.analysis.waiting.call_costs import call_costs, operation_costs
from hvprof.analysis.waiting.wait_time import waiting
from hvprof.recording.jobs import separate
from hvprof.recording.load import job_folders
from hvprof.recording.session import LIBRARY
from testbed.mpi_programs import compile_for
from tests.support.hvprof.recorded import (
    ENVIRONMENT,
    PROGRAMS,
    mpirun,
    own_counts,
    own_mpi,
    run,
    totals,
)
from tests.support.launch.on_every_mpi import IN_TEST_OR_LONG, LIBRARIES, bin_of


@dataclass(frozen=True)
class Built:
    """The programs in C, built for one MPI."""

    mpi: Path
    folder: Path

    def record(self, directory: Path, ranks: int, program: str, **variables: str) -> str:
        """Run a program with the recorder preloaded; returns what it printed."""
        directory.mkdir(exist_ok=True)
        done = run(
            [*mpirun(ranks, self.mpi), self.folder / program],
            {
                **ENVIRONMENT,
                "PATH": f"{self.mpi}{os.pathsep}{os.environ['PATH']}",
                "HVPROF_DIR": str(directory),
                "LD_PRELOAD": str(LIBRARY),
                **variables,
            },
        )
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture(scope="module", params=IN_TEST_OR_LONG)
def built(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Built:
    folder = tmp_path_factory.mktemp("built")
    mpi = own_mpi() if request.param == "environment" else bin_of(request.param)
    for program in ("known_traffic", "known_waits", "known_messages", "known_requests"):
        compile_for(mpi, PROGRAMS / f"{program}.c", "-o", folder / program)
    return Built(mpi, folder)


@pytest.mark.parametrize("name", LIBRARIES)
def test_the_recorder_knows_the_interface_of_every_mpi(name: str, tmp_path: Path) -> None:
    mpi = own_mpi() if name == "environment" else bin_of(name)
    family = "OPEN_MPI_ABI" if name in ("environment", "openmpi5") else "MPICH_ABI"
    facts = {"abi": [f"-D{family}"]}
    # The header of MPI 5.0's interface; of the library that has it the facts are constants.
    if (mpi.parent / "include" / "mpi_abi.h").exists():
        (tmp_path / "mpi.h").write_text('#include "mpi_abi.h"\n')
        facts["standard_abi"] = ["-DSTANDARD_ABI", f"-I{tmp_path}", f"-I{mpi.parent / 'include'}"]
    for program, options in facts.items():
        compile_for(mpi, *options, PROGRAMS / "abi.c", "-o", tmp_path / program, "-ldl")
        done = run([tmp_path / program], {**ENVIRONMENT, "OMPI_MCA_ess_singleton_isolated": "1"})
        assert (done.returncode, done.stdout) == (0, "")


EDGES = [0, 1, 2, 3, 1023, 1024, 1025, 2**17, 2**17 + 1, 2**20 + 1]


def known_messages(size: int) -> dict[str, list[int]]:
    """Bytes of each call of known_traffic.c, but for what it makes communicators for."""
    return {
        "allreduce": [*EDGES, 8],
        "iallreduce": [8],
        "reduce": [8],
        "scan": [8],
        "exscan": [8],
        "reduce_scatter_block": [8 * size],
        "reduce_scatter": [4 * (size + 1)],
        "bcast": [80, 24],
        "ibcast": [24],
        "allgather": [24 * size] * 2,
        "allgatherv": [24 * size],
        "gather": [24],
        "gatherv": [24],
        "scatter": [24],
        "scatterv": [24],
        "alltoall": [24 * size],
        "alltoallv": [24 * size] * 2,
        "alltoallw": [24 * size] * 2,
        "ialltoallw": [24 * size],
        "ibarrier": [0],
        "sendrecv": [10],
        "send": [10],
        "isend": [10],
        "recv": [10],
        "irecv": [10],
        "wait": [0] * 4,
        "waitall": [0],
        "waitany": [0],
    }


# What known_traffic.c makes; rank 0 has a communicator alone besides.
MAKING = {"comm_dup": 2, "comm_split": 1, "comm_create": 1, "comm_free": 2, "comm_group": 1}
MAKING |= {"group_incl": 1, "group_free": 1}
MAKING |= {"type_contiguous": 1, "type_commit": 1, "type_free": 1}


@pytest.mark.parametrize("built", LIBRARIES, indirect=True)
@pytest.mark.parametrize("size", [*(pytest.param(n, marks=pytest.mark.long) for n in (1, 2)), 3])
def test_counts_and_bytes_are_exact_on_every_mpi(built: Built, size: int, tmp_path: Path) -> None:
    built.record(tmp_path / "run", size, "known_traffic")
    recording = hvprof.load(tmp_path / "run")
    assert [rank.rank for rank in recording.ranks] == list(range(size))
    known = known_messages(size)
    for rank in recording.ranks:
        assert (rank.state, rank.dropped_calls) == ("finalized", 0)
        # One that the library counts, if it was built to, has nothing to keep here.
        assert rank.registration_cache is None or rank.registration_cache.hits == 0
        cells = [
            cell
            for cell in rank.cells
            if cell.operation != "barrier" and cell.operation not in MAKING
        ]
        made = totals(rank, with_making=True)
        assert {name: made[name] for name in MAKING} == {
            name: (calls + (name == "comm_free" and rank.rank == 0), 0)
            for name, calls in MAKING.items()
        }
        assert totals(rank, "control") == {"sendrecv": (1, 4)}
        assert totals(rank, "transport") == {"barrier": (1, 0)}
        found = dict.fromkeys(known, 0)
        for cell in cells:
            assert (cell.source, cell.algorithm, cell.size) == ("mpi", "native", size)
            assert 0 <= cell.min_s <= cell.time_s / cell.calls <= cell.max_s <= cell.time_s
            assert sum(calls for _, calls in cell.histogram) == cell.calls
            assert sum(cell.blocks_s) == pytest.approx(cell.time_s)
            if cell.traffic == "data":
                of_bin = [
                    b for b in known[cell.operation] if cell.low_bytes <= b <= cell.high_bytes
                ]
                assert (cell.calls, cell.message_bytes) == (len(of_bin), sum(of_bin)), cell
                found[cell.operation] += cell.calls
        assert found == {operation: len(of_it) for operation, of_it in known.items()}
        types = {cell.operation: cell.datatype for cell in cells if cell.low_bytes <= 24}
        assert types["scan"] == "MPI_INT"
        assert types["gather"] == "MPI_DOUBLE"
        assert {c.datatype for c in cells if c.operation == "bcast"} == {
            "derived 8 B",
            "MPI_DOUBLE",
        }
    if size == 3:
        check_communicators(recording)


def check_communicators(recording: hvprof.Recording) -> None:
    """Of three ranks, that each communicator has one id on all its ranks."""
    ids: dict[str, set[int]] = {}
    for rank in recording.ranks:
        of_rank = {one.id: one for one in rank.communicators}
        assert len(of_rank) == len(rank.communicators)
        for cell in rank.cells:
            if cell.operation == "barrier":
                one = of_rank[cell.communicator]
                assert (cell.calls, one.size) == (1, cell.size) or one.name == "hvd_ext c"
                ids.setdefault(f"{one.id} {one.ranks} {one.name}", set()).add(rank.rank)
    members = sorted((key.split(maxsplit=1)[1], ranks) for key, ranks in ids.items())
    # The halves of even and odd ranks, a copy of each, the world, a copy, and rank 0 alone.
    assert members == [
        ("0 ", {0}),
        ("0,2 ", {0, 2}),
        ("0,2 hvd_ext c", {0, 2}),
        ("0-2 ", {0, 1, 2}),
        ("0-2 MPI_COMM_WORLD", {0, 1, 2}),
        ("1 ", {1}),
        ("1 hvd_ext c", {1}),
    ]


def test_a_sleeping_rank_is_found_out_on_every_mpi(built: Built, tmp_path: Path) -> None:
    output = built.record(tmp_path / "run", 3, "known_waits", HVPROF_TRACE="100")
    slept_s = float(re.findall(r"slept (\S+)", output)[0])
    recording = hvprof.load(tmp_path / "run")
    # Scalasca's wait at NxN, estimated without the trace.
    costs = {cost.operation: cost for cost in operation_costs(recording, call_costs(recording))}
    assert within_a_tenth(3 * costs["allreduce"].wait_s, 2 * slept_s)
    found = waiting(recording)
    assert found is not None
    assert (found.calls, found.covered_calls) == (18, 18)
    peers = {
        (peer.rank, peer.waited_for): peer for peer in found.peers if peer.operation == "allreduce"
    }
    for rank in (0, 1):
        assert peers[rank, 2].wait_s >= 0.9 * slept_s
        assert peers[rank, 2].calls == 3
    allreduce = next(one for one in found.operations if one.operation == "allreduce")
    assert allreduce.wait_s >= 0.9 * 2 * slept_s
    assert allreduce.wait_s + allreduce.transfer_s == pytest.approx(allreduce.time_s)


def test_clocks_of_two_machines_are_laid_over_each_other(built: Built, tmp_path: Path) -> None:
    shifted = ["unshare", "--time", "--monotonic", "5000"]
    if shutil.which("unshare") is None or run([*shifted, "true"]).returncode:
        pytest.skip("a process with a clock of its own needs root, or rights to namespaces")
    program, directory = built.folder / "known_waits", tmp_path / "run"
    directory.mkdir()
    variables = {"LD_PRELOAD": LIBRARY, "HVPROF_TRACE": 100}
    words = " ".join(f"{name}={value}" for name, value in variables.items())
    # Only rank 2, which sleeps, has the other clock.
    script = f"env {words} HVPROF_DIR={directory} {program}"
    launcher = mpirun(2, built.mpi)
    command = [*launcher, "sh", "-c", script]
    command += [":", *launcher[1:-2], "-np", "1", *shifted, "--fork", "sh", "-c", script]
    path = {"PATH": f"{built.mpi}{os.pathsep}{os.environ['PATH']}"}
    done = run(command, {**ENVIRONMENT, **path})
    assert done.returncode == 0, done.stderr
    recording = hvprof.load(directory)
    offset = recording.ranks[2].clock_offsets[0]
    assert recording.ranks[0].clock == recording.ranks[1].clock != recording.ranks[2].clock
    assert offset.offset_s == pytest.approx(-5000, abs=0.01)
    found = waiting(recording)
    assert found is not None
    slept_s = float(re.findall(r"slept (\S+)", done.stdout)[0])
    waited = {(p.rank, p.waited_for): p.wait_s for p in found.peers if p.operation == "allreduce"}
    assert min(waited[0, 2], waited[1, 2]) >= 0.9 * slept_s


def within_a_tenth(waited_s: float, slept_s: float) -> bool:
    """A busy machine wakes ranks late: 12 calls at most, 20 ms each."""
    return 0.9 * slept_s <= waited_s <= 1.1 * slept_s + 12 * 0.02


def test_messages_of_every_kind_are_counted_by_partner(built: Built, tmp_path: Path) -> None:
    output = built.record(tmp_path / "run", 3, "known_messages")
    before_send_s, before_receive_s = map(float, output.split())
    recording = hvprof.load(tmp_path / "run")
    zero, one, two = recording.ranks
    counted = totals(zero)
    # Two messages of a persistent request, and one of each other kind.
    expected = {"ssend": (1, 8), "start": (2, 16), "issend": (1, 8), "send": (6, 16 + 4 * 2**21)}
    expected |= {"sendrecv": (1, 8), "sendrecv_replace": (1, 8), "put": (1, 8), "get": (1, 8)}
    expected |= {"win_fence": (2, 0), "win_lock": (1, 0), "waitsome": (1, 0)}
    atomic = ("get_accumulate", "fetch_and_op", "compare_and_swap")
    expected |= {**dict.fromkeys(atomic, (1, 8)), "win_flush_local": (1, 0)}
    assert {name: counted[name] for name in expected} == expected
    assert totals(one)["mrecv"] == (1, 8)
    assert {"probe", "iprobe", "mprobe", "startall", "irecv"} <= set(totals(one))

    def messages(rank: hvprof.RankRecording) -> dict[tuple[str, int], tuple[int, int]]:
        found = {(p.direction, p.rank): (p.messages, p.message_bytes) for p in rank.partners}
        assert len(found) == len(rank.partners)
        return found

    large = 4 * 2**21
    assert messages(zero) == {("to", 1): (8, 64), ("to", 2): (4, large), ("from", 2): (2, 16)}
    assert messages(one) == {("to", 2): (2, 16), ("from", 0): (8, 64), ("from", 2): (4, 32)}
    assert messages(two) == {("to", 0): (2, 16), ("to", 1): (4, 32), ("from", 1): (2, 16)} | {
        ("from", 0): (4, large)
    }
    # Rank 1 waits for a late sender, rank 0 for a late receiver.
    blocked = {(p.direction, p.rank): p.blocked_s for p in one.partners}
    assert within_a_tenth(blocked["from", 2], before_send_s)
    blocked = {(p.direction, p.rank): p.blocked_s for p in zero.partners}
    assert within_a_tenth(blocked["to", 2], before_send_s + before_receive_s)
    # Scalasca's late sender, late receiver and wait at a barrier, without a trace.
    waited = {
        cost.operation: 3 * cost.wait_s
        for cost in operation_costs(recording, call_costs(recording))
    }
    assert within_a_tenth(waited["recv"], before_send_s)
    assert within_a_tenth(waited["send"], before_send_s + before_receive_s)
    assert within_a_tenth(waited["barrier"], before_receive_s)
    cause = find_cause(recording)
    assert cause is not None
    assert cause.ranks == (2,)
    for rank in (zero, one, two):
        assert rank.usage is not None
        assert rank.usage.calling_threads == 1
        # Sleeping took no core.
        assert rank.usage.threads >= 1
    assert two.usage is not None
    assert two.usage.cpu_s < two.end_unix_s - two.start_unix_s - 0.9 * before_send_s


@pytest.mark.parametrize("built", LIBRARIES, indirect=True)
def test_requests_are_not_mistaken_for_others(built: Built, tmp_path: Path) -> None:
    built.record(tmp_path / "run", 2, "known_requests")
    for rank in hvprof.load(tmp_path / "run").ranks:
        started = 2 * 2 * 3000
        assert totals(rank)["startall"] == (started, 16 * started)
        found = {(p.direction, p.rank): p.messages for p in rank.partners}
        half, single = started // 2, 200
        other = 1 - rank.rank
        assert found == {
            ("to", other): half + single * rank.rank,
            ("from", other): half + single * other,
        }
        # Requests that are not messages have no bytes.
        assert not any(cell.ended for cell in rank.cells if cell.operation == "waitany")


@pytest.mark.parametrize("by_session", [False, True])
@pytest.mark.parametrize("name", ["openmpi5", "mpich5", "intelmpi"])
def test_what_mpi_4_added_is_counted(name: str, by_session: bool, tmp_path: Path) -> None:
    """Against the program's own counter. What a library sends for its files is not counted."""
    mpi, folder = bin_of(name), tmp_path / "run"
    large = ["-DLARGE"] if name != "openmpi5" else []
    compile_for(mpi, *large, PROGRAMS / "known_mpi4.c", "-o", tmp_path / "known_mpi4")
    folder.mkdir()
    command = [*mpirun(2, mpi), tmp_path / "known_mpi4", *["session"] * by_session]
    variables = {"PATH": f"{mpi}{os.pathsep}{os.environ['PATH']}", "HVPROF_DIR": str(folder)}
    variables |= {"LD_PRELOAD": str(LIBRARY)}
    done = run(command, ENVIRONMENT | variables, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for rank in hvprof.load(folder).ranks:
        assert rank.state == "finalized"
        assert totals(rank, with_making=True) == own_counts(tmp_path / f"counts-{rank.rank}")
        (received,) = (one for one in rank.partners if one.direction == "from")
        sent = len(large) * (rank.rank == 1) + 3 * (not by_session and rank.rank == 1)
        assert received.messages == 2 + sent


@pytest.mark.parametrize("built", IN_TEST_OR_LONG, indirect=True)
def test_each_job_has_a_recording_of_its_own_on_every_mpi(built: Built, tmp_path: Path) -> None:
    """Two jobs at once, then a third; each launcher names its jobs in its own way."""
    folder = tmp_path / "run"
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda _: built.record(folder, 2, "known_traffic"), range(2)))
    built.record(folder, 3, "known_traffic")
    assert job_folders(folder) == [folder, folder / "2", folder / "3"]
    (folder / "meta.json").write_text('{"exit_code": 0}')
    separate(folder, {"exit_code": 0})
    for number, size in ((1, 2), (2, 2), (3, 3)):
        ranks = hvprof.load(folder / str(number)).ranks
        assert [rank.rank for rank in ranks] == list(range(size))
        assert {totals(rank)["ibcast"] for rank in ranks} == {(1, 24)}
