"""`hvd-launch run`: starts a job with the settings that suit the machine's MPI."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from hvd_ext.errors import HvdExtError, UsageError
from hvd_ext.units import counted
from hvd_launch import machine
from hvd_launch.backends import slurm
from hvd_launch.backends.base import LAUNCHERS
from hvd_launch.backends.detect import find_backend
from hvd_launch.backends.libraries import TITLES, Backend, Launch, untested_note
from hvd_launch.job import HOSTFILE_VARIABLES, Host, check_size, parse_hostfile, parse_hosts
from hvd_launch.job_settings import add_arguments as add_settings
from hvd_launch.job_settings import job_settings
from hvd_launch.rank import visibility
from hvd_launch.run.profile import Profile
from hvd_launch.run.supervise import run_job
from hvd_launch.settings import Setting, assignment

HELP = "run a command on N ranks"
EXAMPLE = "hvd-launch run -np 8 -H node1:4,node2:4 -- python train.py"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        f"Run COMMAND on N ranks with this machine's MPI: {', '.join(TITLES)}, or srun in a Slurm "
        "allocation. Output lines are prefixed by the rank. "
        "The exit code is that of the first rank that failed, and its last lines are shown."
    )
    parser.add_argument(
        "-np",
        type=int,
        metavar="N",
        help="number of ranks (default: the Slurm allocation's tasks, else the hosts' slots)",
    )
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "-H",
        "--hosts",
        metavar="HOST:SLOTS,...",
        help="hosts, and ranks on each (default: this machine)",
    )
    where.add_argument("--hostfile", type=Path, metavar="F", help="file with a host on each line")
    add_settings(parser)
    parser.add_argument(
        "--launcher", choices=LAUNCHERS, help="program that starts the ranks (default: detected)"
    )
    parser.add_argument(
        "--visibility",
        choices=("auto", *visibility.STRATEGIES),
        default="auto",
        help="GPUs that a rank sees, see hvd-launch exec --help (default: auto)",
    )
    parser.add_argument(
        "--table", type=Path, metavar="F", help="hvd_ext's table of allreduce algorithms"
    )
    parser.add_argument(
        "--profile", type=Path, metavar="DIR", help="folder for a recording by hvprof"
    )
    parser.add_argument(
        "--bare",
        action="store_true",
        help="start COMMAND directly: no rank prefix, no failure report, no --visibility",
    )
    parser.add_argument(
        "--grace",
        type=float,
        metavar="S",
        default=30.0,
        help="seconds that ranks get to write a checkpoint after SIGTERM (default: 30, as Slurm's "
        "KillWait)",
    )
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="print the command and the reason for each setting; run nothing",
    )
    parser.add_argument("--json", action="store_true", help="print JSON, with --dry-run")


def run(options: argparse.Namespace, command: tuple[str, ...]) -> int:
    """Start the job, or print how it would be started."""
    hosts = _hosts(options, os.environ)
    size = _size(options, hosts)
    if options.json and not options.dry_run:
        raise UsageError("--json needs --dry-run")
    if command[0].startswith("-") or (not options.dry_run and shutil.which(command[0]) is None):
        raise UsageError(f"{command[0]!r}: command not found; check its spelling, and PATH")
    backend = find_backend(options.backend, options.launcher)
    profile = None if options.profile is None else Profile(options.profile, command)
    recording = () if profile is None else profile.settings()
    settings, kept = _settings(options, backend, os.environ, recording)
    ranks = command if options.bare else _reporting(options, backend, size, hosts, command)
    launch = machine.rank_command(backend, size, ranks, hosts, settings)
    if options.dry_run:
        show = _json if options.json else script
        print(show(backend, launch, settings, kept, profile))
        return 0
    if "/" not in backend.program:
        raise HvdExtError(
            f"no {backend.program} of {backend.library.title} on PATH: load its module; "
            "--dry-run prints the command for another machine"
        )
    machine.check_hosts(hosts, os.environ)
    _report(size, hosts, settings, kept)
    if profile is None:
        return run_job(launch, not options.bare, options.grace)
    profile.begin()
    return profile.end(run_job(launch, not options.bare, options.grace))


def _size(options: argparse.Namespace, hosts: tuple[Host, ...]) -> int:
    size: int | None = options.np
    if size is None:
        size = slurm.tasks(os.environ) if slurm.allocated(os.environ) else None
    size = sum(host.slots for host in hosts) if size is None and hosts else size
    if size is None:
        raise UsageError(
            "missing number of ranks: give -np N, or request tasks from Slurm (--ntasks)"
        )
    return check_size(size)


def _hosts(options: argparse.Namespace, environ: Mapping[str, str]) -> tuple[Host, ...]:
    """Return the hosts of -H or --hostfile, or outside of Slurm those of the environment's file."""
    if options.hosts is not None:
        return parse_hosts(options.hosts)
    path, named_by = options.hostfile, "--hostfile"
    if path is None and not slurm.allocated(environ):
        named_by = next((name for name in HOSTFILE_VARIABLES if environ.get(name)), "")
        path = Path(environ[named_by]) if named_by else None
    if path is None:
        return ()
    try:
        return parse_hostfile(path.read_text(encoding="utf-8"), str(path))
    except OSError as error:
        raise UsageError(f"{named_by} {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{named_by} {path}: not a text file ({error.reason})") from error


def _settings(
    options: argparse.Namespace,
    backend: Backend,
    environ: Mapping[str, str],
    recording: tuple[Setting, ...],
) -> tuple[tuple[Setting, ...], tuple[Setting, ...]]:
    """Return the settings to apply, and those that the environment overrides."""
    # Some settings conflict with LD_PRELOAD.
    environ = {**environ, **{setting.name: setting.value for setting in recording}}
    found = job_settings(backend.library, environ, options.preset, options.gpus, options.ucx)
    settings = [*recording, *found.given]
    if options.table is not None:
        from hvd_ext.allreduce.table import load

        load(options.table)
        settings.append(
            Setting(
                "HVD_EXT_TABLE",
                str(options.table.resolve()),
                "unset: a table that suits most machines",
                "hvd_ext chooses allreduce algorithms by this table",
                "docs/reference/allreduce.md",
            )
        )
    return tuple(settings), found.kept


def _reporting(
    options: argparse.Namespace,
    backend: Backend,
    size: int,
    hosts: tuple[Host, ...],
    command: tuple[str, ...],
) -> tuple[str, ...]:
    """The command, under `hvd-launch exec`."""
    program = (*machine.module("hvd_launch"), "exec", "--report")
    choice = ("--backend", backend.name, "--visibility", options.visibility)
    place = machine.meeting_place(hosts, os.environ, (str(Path.cwd()), str(size), *command))
    return (*program, *choice, "--job", ",".join((str(size), *place)), "--", *command)


def _report(
    size: int, hosts: tuple[Host, ...], settings: tuple[Setting, ...], kept: tuple[Setting, ...]
) -> None:
    slots = sum(host.slots for host in hosts) or machine.machine_slots(os.environ)
    if size > slots:
        print(f"hvd-launch: note: {size} ranks share {counted(slots, 'slot')}", file=sys.stderr)
    for does, what in (("sets", settings), ("keeps your", kept)):
        if what:
            names = " ".join(setting.name for setting in what)
            print(f"hvd-launch: {does} {names} (--dry-run prints the reasons)", file=sys.stderr)
    sys.stderr.flush()


def script(
    backend: Backend,
    launch: Launch,
    settings: tuple[Setting, ...],
    kept: tuple[Setting, ...],
    profile: Profile | None = None,
) -> str:
    """Return a shell script that does what `run` would do.

    Args:
        backend: the library and its launcher.
        launch: the command.
        settings: the applied settings, each with its reason.
        kept: settings left out, because the environment has another value.
        profile: whether the job is recorded.
    """
    lines = [f"# {backend.title}"]
    if note := untested_note(backend.library):
        lines.append(f"# note: {note}")
    for s in settings:
        lines += [f"# {s.why}", f"# default: {s.default} ({s.source})"]
        lines += [f"export {assignment(s.name, s.value)}"]
    for s in kept:
        # As JSON, because a newline in a value must not end the comment.
        yours = json.dumps(launch.environ[s.name])
        lines.append(f"# {s.name} is kept: {yours}; run would set {json.dumps(s.value)}: {s.why}")
    lines.append(shlex.join(launch.argv))
    if profile is not None:
        lines.insert(0, f"{shlex.join(profile.begin_command)} > /dev/null || exit")
        lines.append(f"code=$?; {shlex.join(profile.end_command)} $code && exit $code")
    return "\n".join(lines)


def _json(
    backend: Backend,
    launch: Launch,
    settings: tuple[Setting, ...],
    kept: tuple[Setting, ...],
    profile: Profile | None,
) -> str:
    del kept
    return json.dumps(
        {
            "backend": asdict(backend),
            "argv": launch.argv,
            "settings": [asdict(setting) for setting in settings],
            "before": None if profile is None else profile.begin_command,
            "after": None if profile is None else (*profile.end_command, "EXIT_CODE"),
        },
        indent=2,
    )
