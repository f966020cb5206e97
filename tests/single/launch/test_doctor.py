"""doctor's findings: each wrong thing is seen, with its evidence, cost and remedy."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hvd_launch.doctor.collect import (
    gpu_names,
    pairs_without_nvlink,
    peers_without_access,
    ucx_transports,
)
from hvd_launch.doctor.model import NOTE, OK, WRONG, Finding, Snapshot
from hvd_launch.doctor.rules import examine
from hvd_launch.doctor.rules_node import CACHE_LINE

OMPI = "Open MPI v4.1.8, package: Open MPI a@b Distribution, ident: 4.1.8"
GIB = 2**30


def rank(number: int, size: int = 2, **other: object) -> dict[str, object]:
    told = {"rank": number, "size": size, "threads": 3, "memlock": None, "cuda_aware": True}
    return told | other


def filling(page_faults: int, time_s: float, left: str = "") -> dict[str, object]:
    told = {"step_bytes": 127 * 2**20, "page_faults": page_faults, "time_s": time_s}
    return {**told, "left": left}


# Two GPUs, InfiniBand, and nothing wrong.
SOUND = Snapshot(
    mpirun={"path": "/opt/bin/mpirun", "name": "openmpi4", "version": (4, 1, 8)},
    mpi4py={"library": OMPI, "path": "/opt/lib/libmpi.so.40"},
    horovod={"version": "0.28.1", "library": OMPI, "mpi": True, "gloo": True, "cuda": True},
    ranks=(rank(0), rank(1)),
    asked=2,
    output="",
    gpus=("NVIDIA A100", "NVIDIA A100"),
    peers=(),
    environ={"OMP_NUM_THREADS": "4"},
    cores=8,
    shm_bytes=8 * GIB,
    memlock_bytes=None,
    infiniband=("mlx5_0",),
    transports=("rc_mlx5", "cuda_copy"),
    components=("pml ucx", "coll ucc"),
    filling={"given": filling(32512, 0.041), "kept": filling(0, 0.0124)},
)
GDR = replace(
    SOUND,
    mpirun={"path": "/opt/bin/mpirun_rsh", "name": "mvapich2-gdr", "version": (2, 3, 7)},
    mpi4py={"library": "MVAPICH2-GDR 2.3.7", "path": "/opt/lib/libmpi.so"},
    horovod={"version": "0.28.1", "library": "MVAPICH2-GDR 2.3.7", "mpi": True, "cuda": True},
)


def wrong(seen: Snapshot) -> dict[str, Finding]:
    return {f.topic: f for f in examine(seen) if f.status == WRONG}


def test_nothing_is_wrong_with_a_sound_machine() -> None:
    assert not wrong(SOUND)
    assert not wrong(GDR)


def env(seen: Snapshot, **variables: str) -> Snapshot:
    return replace(seen, environ={**seen.environ, **variables})


EXPANDABLE = "backend:native,expandable_segments:True"
BUILDS = {"torch": "2.14.1+cu130", "horovod_for": "2.13.0+cpu", "build": "pip install horovod"}
MADE = {"checkout": "/my work/hvd_ext", "replaced": {"mpi4py": ["4.1.2", "4.0.3"]}}
CASES = [
    ("Horovod's torch", replace(SOUND, builds=BUILDS), "built for torch 2.13.0+cpu"),
    ("environment", replace(SOUND, builds=MADE), "mpi4py 4.1.2 -> 4.0.3"),
    ("MPI", replace(SOUND, mpirun={"error": "no mpirun on PATH"}), "no mpirun"),
    ("mpi4py", replace(SOUND, mpi4py={"error": "ModuleNotFoundError: mpi4py"}), "mpi4py"),
    (
        "one MPI: mpi4py",
        replace(SOUND, mpi4py={"library": "MPICH Version: 5.0.2", "path": "/m/libmpi.so.12"}),
        "/m/libmpi.so.12",
    ),
    (
        "one MPI: Horovod",
        replace(SOUND, horovod={**SOUND.horovod, "library": OMPI.replace("4.1.8", "5.0.11")}),
        "v5.0.11",
    ),
    (
        "a job",
        replace(SOUND, ranks=(rank(0, 1), rank(0, 1))),
        "mpirun started 2 processes, and each is a job of 1 rank",
    ),
    (
        "a job",
        replace(SOUND, mpirun={**SOUND.mpirun, "path": "/b/srun"}, ranks=(rank(0, 1), rank(0, 1))),
        "srun started 2 processes",
    ),
    ("a job", replace(SOUND, ranks=(), output="----\nno route to host\n---"), "no route to host"),
    ("thread level", replace(SOUND, ranks=(rank(0), rank(1, threads=1))), "FUNNELED"),
    ("Horovod", replace(SOUND, horovod={"version": "0.28.1", "gloo": True}), "without MPI"),
    ("Horovod", replace(SOUND, horovod={"version": "0.28.1", "mpi": True}), "without GPU"),
    ("Horovod", replace(SOUND, horovod={"error": "ImportError: undefined symbol"}), "undefined"),
    ("GPUs", replace(SOUND, peers=((0, 1),)), "no peer access between 0-1"),
    ("CUDA awareness", replace(SOUND, ranks=(rank(0, cuda_aware=False), rank(1))), "no GPU buf"),
    ("visibility", env(SOUND, CUDA_VISIBLE_DEVICES="1"), "CUDA_VISIBLE_DEVICES=1"),
    (
        "visibility",
        env(
            replace(SOUND, mpirun={"path": "/m", "name": "mpich", "version": (5, 0, 2)}),
            CUDA_VISIBLE_DEVICES="GPU-1,GPU-2",
        ),
        "numbers only",
    ),
    (
        "peers' GPU memory",
        replace(SOUND, opened=({"rank": 0, "reason": ""}, {"rank": 1, "reason": "no CuPy"})),
        "no CuPy",
    ),
    ("Slurm's binding", env(SOUND, SLURM_GPU_BIND="single:1"), "SLURM_GPU_BIND=single:1"),
    ("Slurm's binding", env(SOUND, SLURM_GPUS_PER_TASK="1"), "SLURM_GPUS_PER_TASK=1"),
    ("registration cache", env(SOUND, OMPI_MCA_mpi_leave_pinned="0"), "leave_pinned=0"),
    ("registration cache", env(GDR, MV2_USE_LAZY_MEM_UNREGISTER="0"), "UNREGISTER=0"),
    ("registration cache", replace(GDR, output=f"x\n{CACHE_LINE}\n"), CACHE_LINE),
    ("expandable_segments", env(SOUND, PYTORCH_CUDA_ALLOC_CONF=EXPANDABLE), EXPANDABLE),
    ("expandable_segments", env(SOUND, PYTORCH_ALLOC_CONF="expandable_segments: true"), "true"),
    ("UCX", env(SOUND, UCX_TLS="rc,sm"), "UCX_TLS=rc,sm"),
    ("/dev/shm", replace(SOUND, shm_bytes=64 * 2**20), "64 MiB"),
    ("memlock", replace(SOUND, ranks=(rank(0, memlock=65536), rank(1))), "InfiniBand"),
    ("cores", replace(SOUND, asked=16, ranks=tuple(rank(i, 16) for i in range(16))), "16 ranks"),
]


@pytest.mark.parametrize(("topic", "seen", "evidence"), CASES)
def test_what_is_wrong_is_found_and_explained(topic: str, seen: Snapshot, evidence: str) -> None:
    finding = wrong(seen)[topic]
    assert evidence in finding.evidence
    assert finding.impact
    assert finding.remedy


def test_what_is_right_is_not_called_wrong() -> None:
    for seen in (
        env(SOUND, UCX_TLS="^cuda_ipc"),
        env(SOUND, SLURM_GPU_BIND="none"),
        replace(SOUND, gpus=("NVIDIA A100",), environ={"SLURM_GPUS_PER_TASK": "1"}),
        env(SOUND, UCX_TLS="rc,cuda"),
        env(SOUND, CUDA_VISIBLE_DEVICES="0,1"),
        env(SOUND, PYTORCH_CUDA_ALLOC_CONF="expandable_segments:False"),
        replace(SOUND, infiniband=(), memlock_bytes=65536),
        replace(SOUND, gpus=(), ranks=(rank(0, cuda_aware=False), rank(1, cuda_aware=False))),
        replace(SOUND, horovod={"error": "ModuleNotFoundError: No module named 'horovod'"}),
    ):
        assert not wrong(seen)


def settings_of(name: str, **variables: str) -> list[tuple[str, str]]:
    seen = replace(SOUND, mpirun={"path": "/m", "name": name, "version": (1, 0)})
    found = examine(env(seen, **variables))
    return [(one.status, one.evidence) for one in found if one.topic == "settings"]


def test_what_run_sets_is_told_to_those_who_start_jobs_otherwise() -> None:
    ((status, told),) = settings_of("intelmpi", I_MPI_PIN="0")
    assert (status, told) == (
        OK,
        "hvd-launch run sets I_MPI_THREAD_YIELD=2; hvd-launch env prints the reasons",
    )
    assert "MV2_ENABLE_AFFINITY=0" in settings_of("mvapich2")[0][1]
    found = settings_of("openmpi4", OMPI_MCA_mpi_yield_when_idle="0")
    ((status, told),) = (one for one in found if "yield" in one[1])
    assert status == NOTE
    assert told.startswith("OMPI_MCA_mpi_yield_when_idle=0 is kept; hvd-launch run would set 1: ")
    assert settings_of("mpich") == []


def test_what_horovodrun_cannot_start_is_told() -> None:
    for name, version, word in (("openmpi5", (5, 0, 11), "--binding-args"), ("mpich", (5, 0), "")):
        seen = replace(SOUND, mpirun={"path": "/m", "name": name, "version": version})
        told = {finding.topic: finding for finding in examine(seen)}
        assert word in told["horovodrun"].evidence
    intel = replace(SOUND, mpirun={"path": "/m", "name": "intelmpi", "version": (2021, 13)})
    assert "horovodrun" not in {finding.topic for finding in examine(intel)}


def freed_memory(seen: Snapshot) -> tuple[str, str]:
    found = next(finding for finding in examine(seen) if finding.topic == "freed memory")
    return found.status, found.evidence


def test_what_keeping_freed_memory_brings_is_told() -> None:
    measured = (
        "filling 127 MiB in each step takes 41.0 ms of CPU time with 32512 page faults, "
        "with freed memory kept 12.4 ms with 0"
    )
    assert freed_memory(SOUND) == (OK, f"{measured}: hvd.init() and hvd-launch run keep it")
    chosen = replace(SOUND, left="MALLOC_ARENA_MAX=2 is set")
    assert freed_memory(chosen) == (
        NOTE,
        f"{measured}: it is not kept while MALLOC_ARENA_MAX=2 is set; unset that",
    )
    other = filling(90, 0.0131, "malloc is that of /lib/libjemalloc.so.2")
    status, evidence = freed_memory(replace(SOUND, filling={"given": other, "kept": other}))
    assert status == NOTE
    assert evidence.endswith("90 page faults; malloc is that of /lib/libjemalloc.so.2, unchanged")
    failed = {"given": {"error": "timed out"}, "kept": filling(0, 0.01)}
    assert freed_memory(replace(SOUND, filling=failed)) == (NOTE, "not measured: timed out")


def test_what_yielding_brings_is_told() -> None:
    def told(seen: Snapshot) -> list[tuple[str, str]]:
        return [(f.status, f.evidence) for f in examine(seen) if f.topic == "yielding"]

    measured = replace(SOUND, yielding={"yields": 900.0, "plain": 600.0})
    ((status, evidence),) = told(measured)
    assert status == OK
    assert "OMPI_MCA_mpi_yield_when_idle=1" in evidence
    assert "1.50 x" in evidence
    assert told(SOUND) == []
    assert told(replace(SOUND, yielding={"yields": 960.0, "plain": 1000.0}))[0][0] == NOTE
    for asked, cores in ((2, 1), (1, 1), (3, 2)):
        ((status, evidence),) = told(replace(measured, asked=asked, cores=cores))
        assert status == NOTE
        assert evidence.startswith(f"not measured: {asked} rank")
    mpich = {"path": "/m", "name": "mpich", "version": (5, 0, 2)}
    assert told(replace(measured, mpirun=mpich)) == []


def test_the_recorder_is_reported_as_it_was_tried() -> None:
    def told(recorder: dict[str, str]) -> tuple[str, str]:
        seen = replace(SOUND, recorder=recorder)
        ((status, evidence),) = [
            (f.status, f.evidence) for f in examine(seen) if f.topic == "recorder"
        ]
        return status, evidence

    path = "/e/libhvprof.so"
    works = told({"path": path, "said": "2 ranks recorded"})
    assert works == (OK, f"2 ranks recorded with Open MPI, by {path}")
    assert told({"path": path})[0] == NOTE
    few = told({"path": path, "said": "1 rank recorded"})
    assert few == (WRONG, f"1 rank recorded of 2 ranks: {path} is not for Open MPI")
    none = told({"path": path, "said": "doctor called neither MPI nor torch.distributed"})
    assert none == (WRONG, f"nothing recorded of 2 ranks: {path} is not for Open MPI")
    assert told({"error": f"the recorder {path} is not built"}) == (
        WRONG,
        f"the recorder {path} is not built",
    )
    assert not [f for f in examine(SOUND) if f.topic == "recorder"]


def test_a_library_that_was_never_run_says_so() -> None:
    notes = [finding.evidence for finding in examine(GDR) if finding.status == NOTE]
    assert any("never been run" in note for note in notes)
    assert not any("never been run" in finding.evidence for finding in examine(SOUND))


def said(seen: Snapshot) -> dict[str, str]:
    return {finding.topic: finding.evidence for finding in examine(seen)}


def test_the_ways_between_gpus_are_reported() -> None:
    assert "modprobe nvidia_peermem" in said(SOUND)["GPUDirect"]
    assert said(replace(SOUND, peermem=True))["GPUDirect"] == "nvidia_peermem is loaded"
    assert "GPUDirect" not in said(replace(SOUND, infiniband=()))
    assert "can open it" in said(replace(SOUND, opened=({"reason": ""},)))["peers' GPU memory"]
    assert "NVLink" not in said(SOUND)
    assert said(replace(SOUND, without_nvlink=()))["NVLink"] == "joins all GPUs"
    assert "none between 0-1: " in said(replace(SOUND, without_nvlink=((0, 1),)))["NVLink"]


def test_whether_mpi_takes_gpu_memory_is_reported() -> None:
    topic = "GPU memory in MPI"
    assert topic not in said(SOUND)
    took = {"reason": "", "us": {"staged": 12_000.0, "mpi": 4_000.0}}
    right = said(replace(SOUND, given=(took, took)))[topic]
    assert "with the right bits: 64 MiB take 4 ms, and 12 ms through pinned memory" in right
    wrong = {"reason": "mpi gave wrong sums", "us": {}}
    left_out = said(replace(SOUND, given=(wrong, wrong)))[topic]
    assert "does not take it: mpi gave wrong sums; between nodes" in left_out
    for crashed in ((), (took,)):
        assert "crashed, or did not end" in said(replace(SOUND, given=crashed))[topic]


# As NVIDIA's and UCX's documentation show it; not run on a GPU here.
def test_what_tools_print_is_read() -> None:
    listed = (
        "GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-5d5b)\nGPU 1: Tesla V100 (16 GB) (UUID: GPU-1)\n"
    )
    assert gpu_names(listed) == ("NVIDIA A100-SXM4-40GB", "Tesla V100 (16 GB)")
    matrix = (
        " \tGPU0\tGPU1\tGPU2\n GPU0\tX\tOK\tNS\n GPU1\tOK\tX\tCNS\n GPU2\tNS\tCNS\tX\n\nLegend:"
    )
    assert peers_without_access(matrix) == ((0, 2), (1, 2))
    assert peers_without_access("") == ()
    topology = (
        "\tGPU0\tGPU1\tGPU2\tNIC0\tCPU Affinity\nGPU0\t X \tNV12\tSYS\tPXB\t0-31\n"
        "GPU1\tNV12\t X \tNODE\tPXB\t0-31\nGPU2\tSYS\tNODE\t X \tSYS\t32-63\n"
        "NIC0\tPXB\tPXB\tSYS\t X \n"
    )
    assert pairs_without_nvlink(topology) == ((0, 2), (1, 2))
    assert pairs_without_nvlink("") is None
    devices = (
        "#      Transport: tcp\n#         Device: eth0\n#      Transport: tcp\n#  Transport: cma"
    )
    assert ucx_transports(devices) == ("tcp", "cma")
    assert ucx_transports("") is None


def test_a_remedy_is_make_env_where_that_made_the_environment() -> None:
    torch = wrong(replace(SOUND, builds=BUILDS))["Horovod's torch"]
    assert torch.remedy == "pip install horovod"
    made = wrong(replace(SOUND, builds={**BUILDS, **MADE}))
    assert made["Horovod's torch"].remedy == "make -C '/my work/hvd_ext' env"
    assert made["environment"].remedy == "make -C '/my work/hvd_ext' env"
