"""Observes a machine for `hvd-launch doctor`: every probe is a process with a time limit."""

from __future__ import annotations

import json
import math
import os
import re
import resource
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hvd_ext.errors import HvdExtError
from hvd_ext.system import freed_memory
from hvd_ext.units import counted
from hvd_launch import machine
from hvd_launch.backends.detect import find_backend
from hvd_launch.backends.libraries import Backend
from hvd_launch.doctor.model import Snapshot
from hvd_launch.job_settings import job_settings
from hvd_launch.run.profile import Profile

_TIMEOUT_S = 60
# Rounds of interleaved measurements, so that a disturbance affects all of them, and some rounds are
# undisturbed.
_TURNS = 3
_PROBE = machine.module("hvd_launch.doctor.child")
_OPENS_PEERS = machine.module("hvd_ext.arena.cuda.open_peers")
_GIVES_MPI = machine.module("hvd_ext.arena.cuda.mpi_probe")

# NVIDIA's module, and the one that it replaced.
_PEERMEM = {"nvidia_peermem", "nv_peer_mem"}


def look(ranks: int, backend: str | None, log: str, say: Callable[[str], None]) -> Snapshot:
    """Run all probes.

    Args:
        ranks: number of ranks of the trial job.
        backend: the MPI library (default: detected).
        log: text of a training job's log, which is checked like the trial's output.
        say: called with the name of each probe.
    """
    say("mpirun")
    mpirun, found = _mpirun(backend)
    say("mpi4py")
    mpi4py = _json([*_PROBE, "mpi4py"])
    say("Horovod")
    horovod = _json([*_PROBE, "horovod"])
    builds = _json([*_PROBE, "builds"])
    answers: list[Mapping[str, Any]] = []
    output = log
    if found is not None and "error" not in mpi4py:
        say(f"a job of {counted(ranks, 'rank')}")
        answers, printed = _job(found, ranks, *_PROBE, "rank")
        output += printed
    yielding: dict[str, float] = {}
    # With a free core, the waiting thread takes none from a computing one; with fewer cores than
    # ranks, or a single rank, the measurement would not be one of waiting.
    if (
        found is not None
        and len(answers) == ranks == machine.cores() > 1
        and answers[0]["size"] == ranks
    ):
        say("yielding")
        yielding = _yielding(found, ranks)
    say("recorder")
    recorder = _recorder(found if len(answers) == ranks else None, ranks)
    say("freed memory")
    filling = _filling(os.environ)
    say("devices")
    gpus = gpu_names(_text(["nvidia-smi", "-L"]))
    opened: list[Mapping[str, Any]] = []
    given: list[Mapping[str, Any]] | None = None
    if gpus and found is not None and len(answers) == ranks:
        opened, _ = _job(found, ranks, *_OPENS_PEERS)
        if ranks > 1 and opened and not any(rank["reason"] for rank in opened):
            given, _ = _job(found, ranks, *_GIVES_MPI)
    shm = os.statvfs("/dev/shm") if Path("/dev/shm").is_dir() else None
    memlock, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return Snapshot(
        mpirun=mpirun,
        mpi4py=mpi4py,
        horovod=horovod,
        builds=builds,
        ranks=tuple(answers),
        asked=ranks,
        output=output,
        gpus=gpus,
        opened=tuple(opened),
        given=None if given is None else tuple(given),
        peers=peers_without_access(_text(["nvidia-smi", "topo", "-p2p", "r"])),
        environ=dict(os.environ),
        cores=machine.cores(),
        shm_bytes=shm.f_frsize * shm.f_blocks if shm else 0,
        memlock_bytes=None if memlock == resource.RLIM_INFINITY else memlock,
        infiniband=_names(Path("/sys/class/infiniband")),
        transports=ucx_transports(_text(["ucx_info", "-d"])),
        components=() if found is None else _components(found),
        left=freed_memory.left_alone(os.environ),
        filling=filling,
        yielding=yielding,
        recorder=recorder,
        without_nvlink=pairs_without_nvlink(_text(["nvidia-smi", "topo", "-m"])),
        peermem=bool(_PEERMEM & set(_names(Path("/sys/module")))),
    )


def gpu_names(text: str) -> tuple[str, ...]:
    """Return the names of the GPUs from `nvidia-smi -L`: "GPU 0: NVIDIA A100 (UUID: GPU-...)"."""
    return tuple(re.findall(r"^GPU \d+: (.+?) \(UUID: ", text, re.MULTILINE))


def peers_without_access(text: str) -> tuple[tuple[int, int], ...]:
    """Return the pairs for which `nvidia-smi topo -p2p r` does not print OK."""
    return _pairs(text, lambda word: word != "OK")


def pairs_without_nvlink(text: str) -> tuple[tuple[int, int], ...] | None:
    """Return pairs without NV1, NV2 ... in `nvidia-smi topo -m`; None if it printed nothing."""
    return _pairs(text, lambda word: not re.fullmatch(r"NV\d+", word)) if text else None


def _pairs(text: str, is_meant: Callable[[str], bool]) -> tuple[tuple[int, int], ...]:
    """Return pairs of GPUs with such a word in a matrix of nvidia-smi; X is the GPU itself."""
    pairs, columns = [], 0
    for line in text.splitlines():
        words = line.split()
        if words and re.fullmatch(r"GPU\d+", words[0]) and len(words) > 1:
            if re.fullmatch(r"GPU\d+", words[1]):
                columns = sum(bool(re.fullmatch(r"GPU\d+", word)) for word in words)
                continue  # the head of the table
            first = int(words[0][3:])
            pairs += [
                (first, second)
                for second, word in enumerate(words[1 : columns + 1])
                if second > first and is_meant(word)
            ]
    return tuple(pairs)


def ucx_transports(text: str) -> tuple[str, ...] | None:
    """Return the transports from `ucx_info -d`; None if it printed nothing."""
    names = re.findall(r"^#\s+Transport: (\S+)", text, re.MULTILINE)
    return tuple(dict.fromkeys(names)) if text else None


def _mpirun(name: str | None) -> tuple[dict[str, Any], Backend | None]:
    try:
        found = find_backend(name)
    except HvdExtError as error:
        return {"error": str(error)}, None
    if "/" not in found.program:
        return {"error": f"no {found.program} of {name} on PATH"}, None
    mpirun = {"path": found.program, "name": found.name, "version": found.version}
    return mpirun, found


def _job(
    found: Backend, ranks: int, *program: str, **variables: str | None
) -> tuple[list[Mapping[str, Any]], str]:
    """Run a program on ranks; returns the ranks' reports, and the other output.

    The ranks start as `run` would start them, except for `variables`; None: not set.
    """
    wanted = {**os.environ, **variables}
    environ = {name: value for name, value in wanted.items() if value is not None}
    given = job_settings(found.library, environ).given
    settings = [setting for setting in given if setting.name not in variables]
    launch = machine.rank_command(found, ranks, program, settings=settings, environ=environ)
    done = _run(launch.argv, launch.environ)
    answers: list[Mapping[str, Any]] = []
    rest: list[str] = []
    for line in done.splitlines():
        try:
            value = json.loads(line)
        except ValueError:
            value = None
        if isinstance(value, dict) and "rank" in value:
            answers.append(value)
        else:
            rest.append(line)
    return answers, "\n".join(rest)


def _yielding(found: Backend, ranks: int) -> dict[str, float]:
    """Measure steps/s next to a thread that waits in MPI, with yielding and by default.

    Empty if the library needs no setting to yield, or a job failed.
    """
    if (setting := found.library.yields) is None:
        return {}
    values = {"yields": setting.value, "plain": None}
    answers = {
        name: _job(found, ranks, *_PROBE, "yielding", **{setting.name: value})[0]
        for name, value in values.items()
    }
    if any(len(seen) != ranks for seen in answers.values()):
        return {}
    return {name: seen[0]["per_s"] for name, seen in answers.items()}


def _recorder(found: Backend | None, ranks: int) -> dict[str, str]:
    """Return the recorder's path, and hvprof's report of a job with it; None if no job works."""
    with tempfile.TemporaryDirectory() as folder:
        profile = Profile(Path(folder) / "run", ("doctor",))
        try:
            variables = {setting.name: setting.value for setting in profile.settings()}
            seen = {"path": variables["LD_PRELOAD"].partition(":")[0]}
            if found is not None:
                profile.begin()
                _job(found, ranks, *_PROBE, "rank", **variables)
                said = _run([*profile.end_command, "0"], os.environ).partition("\n")[0]
                seen["said"] = said.removeprefix("hvprof: ").partition(f" in {folder}")[0]
        except HvdExtError as error:
            return {"error": str(error).removeprefix("--profile: ")}
    return seen


def _filling(environ: Mapping[str, str]) -> dict[str, Mapping[str, Any]]:
    """Run the probe `filling` with this environment's malloc, and with freed memory kept."""
    given = {n: v for n, v in environ.items() if freed_memory.VARIABLES.get(n) != v}
    kept = {n: v for n, v in environ.items() if n not in freed_memory.chosen_names(environ)}
    environs = {
        "given": {**given, "HVD_EXT_KEEP_MEMORY": "0"},
        "kept": {**kept, "HVD_EXT_KEEP_MEMORY": "1"},
    }
    answers = [
        {name: _json([*_PROBE, "filling"], variables) for name, variables in environs.items()}
        for _ in range(_TURNS)
    ]
    return {
        name: min((turn[name] for turn in answers), key=lambda seen: seen.get("time_s", math.inf))
        for name in environs
    }


def _components(found: Backend) -> tuple[str, ...]:
    beside = Path(found.program).with_name(found.library.info_command or "none")
    return found.library.components(_text([str(beside)]) if beside.exists() else "")


def _json(command: Sequence[str], environ: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return the result of a probe, whose last line is JSON."""
    printed = _run(command, os.environ if environ is None else environ).strip().splitlines()
    try:
        value = json.loads(printed[-1]) if printed else {}
    except ValueError:
        value = {}
    if isinstance(value, dict) and value:
        return value
    return {"error": printed[-1][:200] if printed else "the probe printed nothing"}


def _text(command: Sequence[str]) -> str:
    """Return the output of a tool, or "" if it is missing or fails."""
    return _run(command, os.environ, fail="") if shutil.which(command[0]) else ""


def _run(command: Sequence[str], environ: Mapping[str, str], fail: str | None = None) -> str:
    try:
        done = subprocess.run(
            command,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return fail if fail is not None else f"{command[0]} timed out after {_TIMEOUT_S} s"
    except OSError as error:
        return fail if fail is not None else f"{command[0]}: {error.strerror}"
    return done.stdout if done.returncode == 0 or fail is None else fail


def _names(folder: Path) -> tuple[str, ...]:
    return tuple(sorted(path.name for path in folder.iterdir())) if folder.is_dir() else ()
