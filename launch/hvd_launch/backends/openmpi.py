"""Open MPI 4 (ORTE) and 5 (PRRTE): command line and variables. Pure.

MCA parameters are given as OMPI_MCA_ variables: both versions, and horovodrun, hand those
to every rank by themselves.
"""

from __future__ import annotations

import re

from hvd_launch.backends import ucx
from hvd_launch.job import Job
from hvd_launch.settings import Setting, wants_ipc, wants_registration_cache

_SMCUDA = "ompi_info --param btl smcuda --level 9"
_PINNED = "ompi_info --param mpi all --level 9; Open MPI FAQ, tuning with leave_pinned"
_UCC = "ompi_info --param coll ucc --level 9; ompi/mca/coll/cuda, priority 78"


def recognise(text: str) -> tuple[str, tuple[int, ...]] | None:
    """Name and version, if this is what Open MPI's `mpirun --version` prints."""
    first = text.strip().partition("\n")[0].strip()
    match = re.fullmatch(r"\S+ \((?:Open MPI|OpenRTE)\) (\d+)\.(\d+)\.(\d+)\S*", first)
    if match is None or int(match.group(1)) < 4:
        return None
    version = tuple(map(int, match.groups()))
    return ("openmpi4" if version[0] == 4 else "openmpi5"), version


def arguments(job: Job) -> list[str]:
    """What to pass to mpirun; Open MPI 5 takes no single-dash long options."""
    arguments = ["--allow-run-as-root"] if job.as_root else []
    arguments += ["-np", str(job.size)]
    if job.hosts:
        arguments += ["--host", ",".join(f"{host.name}:{host.slots}" for host in job.hosts)]
    if job.oversubscribed:
        arguments += ["--oversubscribe"]
    # A rank of a training framework has threads, which a binding to one core would stack.
    arguments += ["--bind-to", "none", "--map-by", "slot"]
    for name in job.exported:
        arguments += ["-x", name]
    return [*arguments, *job.command]


def devices(preset: str) -> tuple[Setting, ...]:
    """A preset for jobs on GPUs: for the smcuda transport, and for UCX where it is used."""
    ipc, cache = wants_ipc(preset), wants_registration_cache(preset)
    settings = [
        Setting(
            "OMPI_MCA_btl_smcuda_use_cuda_ipc",
            "1" if ipc else "0",
            "1",
            "GPUs of a node copy from each other's memory (pml ob1, as under horovodrun)"
            if ipc
            else "GPUs of a node exchange through the host (pml ob1, as under horovodrun)",
            _SMCUDA,
        ),
        Setting(
            "OMPI_MCA_mpi_leave_pinned",
            "1" if cache else "0",
            "-1: on where a transport asks for it",
            "keeps memory registered with the network card between messages (pml ob1)"
            if cache
            else "registers memory with the network card for each large message anew (pml ob1)",
            _PINNED,
        ),
        *ucx.devices(preset),
    ]
    if ipc:
        above = "coll/cuda (priority 78) would stage an allreduce of GPU buffers in the host,"
        settings += [
            Setting(
                "OMPI_MCA_coll_ucc_enable",
                "1",
                "0",
                f"{above} where no CUDA IPC helps: UCC reduces on the GPUs, where it is built in",
                _UCC,
            ),
            Setting(
                "OMPI_MCA_coll_ucc_priority",
                "100",
                "below coll/cuda's",
                "above coll/cuda's 78, or UCC would never be asked",
                _UCC,
            ),
        ]
    return tuple(settings)


def through_ucx() -> tuple[Setting, ...]:
    """Sends through UCX, whatever network it finds."""
    source = "ompi_info --param pml all --level 9"
    any_network = "Open MPI asks for UCX only where it names an InfiniBand network or a GPU link"
    return (
        Setting(
            "OMPI_MCA_pml",
            "ucx",
            "ucx where it finds a fast network, else ob1",
            "point-to-point messages go through UCX, which horovodrun forbids (pml ob1)",
            f"{source}; horovod/runner/mpi_run.py",
        ),
        Setting(
            "OMPI_MCA_pml_ucx_tls", "any", "rc, ud, dc, cuda_ipc, rocm_ipc", any_network, source
        ),
        Setting("OMPI_MCA_pml_ucx_devices", "any", "mlx*", any_network, source),
    )
