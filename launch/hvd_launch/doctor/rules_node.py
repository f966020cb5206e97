"""Rules about a node: GPUs, caches, allocator, UCX, limits, cores. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from hvd_ext.units import counted, format_seconds
from hvd_launch.doctor.model import NOTE, OK, WRONG, Finding, Snapshot

# Set if Slurm gives each task only some of a node's GPUs.
_SLURM_BINDINGS = ("SLURM_GPU_BIND", "SLURM_GPUS_PER_TASK")
CACHE_LINE = "Continuing without InfiniBand registration cache support"
_GIB = 2**30
_MIB = 2**20
# An arena of ResNet-50's gradients; a container has 64 MiB unless set otherwise.
_LEAST_SHM_BYTES = 256 * _MIB


def _devices(seen: Snapshot) -> Iterator[Finding]:
    aware = {rank.get("cuda_aware") for rank in seen.ranks}
    known = "takes GPU buffers" if True in aware else "does not say whether it takes GPU buffers"
    if not seen.gpus:
        yield Finding("GPUs", NOTE, "none on this machine")
        if aware:
            known = "takes no GPU buffers" if False in aware else known
            yield Finding("CUDA awareness", NOTE, f"the MPI library {known}")
        return
    kinds = ", ".join(f"{seen.gpus.count(name)} x {name}" for name in dict.fromkeys(seen.gpus))
    if seen.peers:
        pairs = ", ".join(f"{a}-{b}" for a, b in seen.peers[:4])
        yield Finding(
            "GPUs",
            WRONG,
            f"{kinds}; no peer access between {pairs}" + (" ..." if len(seen.peers) > 4 else ""),
            "CUDA IPC between these goes through the host",
            "turn off ACS in the machine's BIOS, or give jobs the GPUs of one PCIe switch",
        )
    else:
        yield Finding("GPUs", OK, kinds + ("; all have peer access" if len(seen.gpus) > 1 else ""))
    if False in aware:
        yield Finding(
            "CUDA awareness",
            WRONG,
            "the MPI library says that it takes no GPU buffers",
            "a GPU buffer given to MPI crashes, or every one is staged through the host",
            "use an MPI library built with CUDA (Open MPI: --with-cuda; MVAPICH2-GDR)",
        )
    elif aware:
        yield Finding("CUDA awareness", OK if True in aware else NOTE, f"the MPI library {known}")
    if seen.library is not None and (note := seen.library.gpu_allreduce_note(seen.components)):
        yield Finding("GPU allreduce", NOTE, note)


def _links(seen: Snapshot) -> Iterator[Finding]:
    """Return findings about the paths between GPUs."""
    if seen.gpus and seen.infiniband:
        loaded = "nvidia_peermem is loaded" if seen.peermem else "nvidia_peermem is not loaded"
        hint = "" if seen.peermem else ": GPUDirect needs `modprobe nvidia_peermem`, or dma-buf"
        yield Finding("GPUDirect", OK if seen.peermem else NOTE, loaded + hint)
    if reason := next((rank["reason"] for rank in seen.opened if rank["reason"]), ""):
        yield Finding(
            "peers' GPU memory",
            WRONG,
            reason,
            "gradients on GPUs fall back to Horovod or to DDP's process group",
            "install CuPy if it is missing; in containers, share the host's IPC and process "
            "namespaces; in Slurm, --gpu-bind=none",
        )
    elif seen.opened:
        yield Finding("peers' GPU memory", OK, "ranks can open it (CUDA IPC)")
    if len(seen.gpus) < 2:
        return
    if seen.without_nvlink:
        pairs = ", ".join(f"{a}-{b}" for a, b in seen.without_nvlink[:4])
        more = " ..." if len(seen.without_nvlink) > 4 else ""
        yield Finding(
            *("NVLink", NOTE),
            f"none between {pairs}{more}: these GPUs exchange gradients over PCIe; give jobs GPUs "
            "that are joined, if there are some",
        )
    elif seen.without_nvlink is not None:
        yield Finding("NVLink", OK, "joins all GPUs")
    bound = {name: seen.environ[name] for name in _SLURM_BINDINGS if seen.environ.get(name)}
    bound = {name: value for name, value in bound.items() if value != "none"}
    if bound:
        name, value = next(iter(bound.items()))
        yield Finding(
            "Slurm's binding",
            WRONG,
            f"{name}={value}: a task sees only its GPUs",
            "ranks cannot open each other's GPU memory (CUDA IPC)",
            "srun --gpu-bind=none, and --gpus-per-node in place of --gpus-per-task",
        )


def _given_to_mpi(seen: Snapshot) -> Iterator[Finding]:
    """Finding about the job that gave GPU memory to MPI."""
    if seen.given is None:
        return
    topic, else_ = "GPU memory in MPI", "between nodes, gradients go through pinned memory"
    reason = "that job crashed, or did not end" if len(seen.given) < seen.asked else ""
    reason = reason or next((rank["reason"] for rank in seen.given if rank["reason"]), "")
    if reason:
        yield Finding(topic, NOTE, f"the MPI library does not take it: {reason}; {else_}")
        return
    took = {name: format_seconds(us / 1e6) for name, us in seen.given[0]["us"].items()}
    text = f"MPI sends it, with the right bits: 64 MiB take {took['mpi']}, and {took['staged']}"
    use = "hvd-launch tune allreduce --memory device measures both between nodes"
    yield Finding(topic, OK, f"{text} through pinned memory; {use}")


def _visibility(seen: Snapshot) -> Iterator[Finding]:
    text = seen.environ.get("CUDA_VISIBLE_DEVICES")
    if text is None or not seen.gpus:
        return
    devices = [word for word in text.split(",") if word]
    misread = "" if seen.library is None else seen.library.uuids_misread
    if misread and any(not word.strip().isdecimal() for word in devices):
        yield Finding(
            "visibility",
            WRONG,
            f"CUDA_VISIBLE_DEVICES={text}: MPICH reads numbers only",
            f"MPICH takes every such name for {misread}",
            "list GPUs by number",
        )
    elif len(devices) == 1 and len(seen.gpus) > 1:
        yield Finding(
            "visibility",
            WRONG,
            f"CUDA_VISIBLE_DEVICES={text} is set where jobs are started",
            "all ranks of this machine share one GPU",
            "unset CUDA_VISIBLE_DEVICES; hvd-launch run gives each rank its own",
        )
    else:
        yield Finding("visibility", OK, f"CUDA_VISIBLE_DEVICES={text}")


def _registration_cache(seen: Snapshot) -> Iterator[Finding]:
    if CACHE_LINE in seen.output:
        yield Finding(
            "registration cache",
            WRONG,
            f'the library printed "{CACHE_LINE}"',
            "every large message is registered with the network card again (paper: 5 % of the "
            "throughput of EDSR)",
            "keep other allocators out of LD_PRELOAD (tcmalloc, jemalloc), and start through "
            "the library's own libraries: LD_PRELOAD=$MV2_PATH/lib/libmpi.so",
        )
        return
    switches = () if seen.library is None else seen.library.registration_cache_off
    pairs = (word.partition("=") for word in switches)
    off = [f"{name}={value}" for name, _, value in pairs if seen.environ.get(name) == value]
    if off:
        yield Finding(
            "registration cache",
            WRONG,
            f"off: {' '.join(off)}",
            "every large message is registered with the network card again",
            f"unset {' '.join(word.partition('=')[0] for word in off)}",
        )
    elif seen.infiniband:
        yield Finding("registration cache", OK, "on, the library's default")
    else:
        yield Finding("registration cache", NOTE, "no InfiniBand here: nothing to register")


def _allocator(seen: Snapshot) -> Iterator[Finding]:
    for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
        value = seen.environ.get(name, "")
        if "expandable_segments:true" in value.replace(" ", "").lower():
            yield Finding(
                "expandable_segments",
                WRONG,
                f"{name}={value}",
                "such memory has no legacy IPC handle: CUDA IPC is off, silently (0.3 instead "
                "of 200 GB/s: openucx/ucx#11548)",
                f"export {name}=expandable_segments:False",
            )


def _freed_memory(seen: Snapshot) -> Iterator[Finding]:
    """Report the cost of refilling freed memory, as each step does with its activations."""
    if not seen.filling:
        return
    given, kept = seen.filling["given"], seen.filling["kept"]
    for probe in (given, kept):
        if "error" in probe:
            yield Finding("freed memory", NOTE, f"not measured: {probe['error']}")
            return
    text = (
        f"filling {given['step_bytes'] / _MIB:.0f} MiB in each step takes "
        f"{1e3 * given['time_s']:.1f} ms of CPU time with "
        f"{counted(given['page_faults'], 'page fault')}"
    )
    if kept["left"]:
        yield Finding("freed memory", NOTE, f"{text}; {kept['left']}, unchanged")
        return
    text += f", with freed memory kept {1e3 * kept['time_s']:.1f} ms with {kept['page_faults']}"
    if not seen.left:
        yield Finding("freed memory", OK, f"{text}: hvd.init() and hvd-launch run keep it")
    else:
        yield Finding("freed memory", NOTE, f"{text}: it is not kept while {seen.left}; unset that")


def _limits(seen: Snapshot) -> Iterator[Finding]:
    if seen.shm_bytes < _LEAST_SHM_BYTES:
        yield Finding(
            "/dev/shm",
            WRONG,
            f"{seen.shm_bytes / _MIB:.0f} MiB",
            "MPI's messages between ranks of a node have no room, and data loaders die with SIGBUS",
            "docker run --shm-size=8g (or --ipc=host); else mount -o remount,size=8g /dev/shm",
        )
    else:
        yield Finding("/dev/shm", OK, f"{seen.shm_bytes / _GIB:.1f} GiB")
    limits = {rank["memlock"] for rank in seen.ranks} or {seen.memlock_bytes}
    bounded = [limit for limit in limits if limit is not None]
    text = f"{min(bounded) / _MIB:.0f} MiB" if bounded else "unlimited"
    if bounded and seen.infiniband:
        yield Finding(
            "memlock",
            WRONG,
            f"a rank may lock {text}, and there is InfiniBand",
            "memory cannot stay registered with the network card: slow, or an error",
            "'* soft memlock unlimited' and the same with hard, in /etc/security/limits.conf",
        )
    else:
        yield Finding("memlock", OK, text if not bounded else f"{text}; no InfiniBand needs more")


def _cores(seen: Snapshot) -> Iterator[Finding]:
    if seen.asked > seen.cores:
        yield Finding(
            "cores",
            WRONG,
            f"{seen.asked} ranks on {counted(seen.cores, 'core')}",
            "waiting ranks take the cores that computing ranks need",
            f"start at most {counted(seen.cores, 'rank')} here",
        )
        return
    threads = seen.environ.get("OMP_NUM_THREADS")
    if threads is None and seen.asked > 1 and seen.cores > 1:
        share = max(1, seen.cores // seen.asked)
        yield Finding(
            "cores",
            NOTE,
            f"{seen.cores} cores for {seen.asked} ranks, and OMP_NUM_THREADS is not set: each "
            f"rank starts {seen.cores} threads; export OMP_NUM_THREADS={share}",
        )
    else:
        yield Finding("cores", OK, f"{seen.cores} for {counted(seen.asked, 'rank')}")


def _yielding(seen: Snapshot) -> Iterator[Finding]:
    """Report the speedup of a computation next to Horovod's thread if that yields."""
    setting = None if seen.library is None else seen.library.yields
    if setting is None:
        return
    if seen.asked > seen.cores or seen.asked == seen.cores == 1:
        has = f"{counted(seen.asked, 'rank')} on {counted(seen.cores, 'core')}"
        few = f"not measured: {has} cannot show what {setting.name}={setting.value} changes"
        yield Finding("yielding", NOTE, few)
    elif seen.yielding:
        gain = seen.yielding["yields"] / seen.yielding["plain"]
        yield Finding(
            "yielding",
            OK if gain >= 1 else NOTE,
            f"with {setting.name}={setting.value}, which hvd-launch run sets, ranks compute "
            f"{gain:.2f} x as fast next to a thread that waits in MPI, as stock Horovod's does",
        )


def _ucx(seen: Snapshot) -> Iterator[Finding]:
    chosen = seen.environ.get("UCX_TLS", "")
    names = [word.strip() for word in chosen.split(",") if word.strip()]
    cuda = any(name.startswith("cuda") or name == "all" for name in names)
    if seen.gpus and names and not chosen.startswith("^") and not cuda:
        yield Finding(
            "UCX",
            WRONG,
            f"UCX_TLS={chosen} does not contain cuda",
            "UCX takes GPU memory for the host's, and crashes or stages it",
            f"export UCX_TLS={chosen},cuda",
        )
    elif seen.transports is not None:
        listed = ", ".join(seen.transports) or "none"
        yield Finding("UCX", OK, f"transports: {listed}")
    elif "pml ucx" in seen.components:
        yield Finding("UCX", OK, "built into Open MPI; hvd-launch run --ucx uses it")
    else:
        yield Finding("UCX", NOTE, "ucx_info is not on PATH: its transports are not known")


RULES: tuple[Callable[[Snapshot], Iterator[Finding]], ...] = (
    _devices,
    _links,
    _given_to_mpi,
    _visibility,
    _registration_cache,
    _allocator,
    _ucx,
    _freed_memory,
    _limits,
    _cores,
    _yielding,
)
