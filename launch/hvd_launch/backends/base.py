"""Base class of MPI libraries: all facts that hvd-launch needs about one.

Everything here builds argument vectors: nothing ever passes through a shell.
"""

from __future__ import annotations

import abc
import re
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path

from hvd_ext.errors import UsageError
from hvd_ext.system import mpi_libraries
from hvd_ext.system.mpi_libraries import Version
from hvd_launch.backends.tuning import Candidates, NativeRules, RuleRequest
from hvd_launch.job import Job
from hvd_launch.settings import Setting

# Launchers, and their programs.
PROGRAMS = {"mpirun": "mpirun", "hydra": "mpirun", "mpirun_rsh": "mpirun_rsh", "srun": "srun"}
LAUNCHERS = tuple(PROGRAMS)
# The reason for making a library yield.
YIELDS = "a thread that waits in MPI, such as Horovod's, leaves its core to one that computes"


class MpiLibrary(abc.ABC):
    """An MPI library: its detection, launch and settings. Pure.

    Attributes:
        name: its value of --backend.
        assumed_version: version to assume if the library is named but not found on this machine.
        launchers: those of LAUNCHERS that start its ranks, the usual one first.
        tested: whether this project's tests have run it.
        family: libraries that set the same rank variables share it.
        rank_variables: those that its launcher sets: rank, local rank; None: no own ones.
        local_size_variable: the one with the number of this host's ranks; "" if there is none.
        srun_plugins: plugins that its ranks can use (Slurm's MPI guide), the best first.
        exported: matches the names of its variables that ranks on other hosts need and its launcher
            does not pass on by itself.
        mpirun_is_shared: whether other libraries' mpirun prints the same version.
        version_command: a program next to mpirun that reports the library, and its arguments.
        info_command: a program next to mpirun that lists the library's components.
        agent_variable: variable that names a program in place of ssh to reach other hosts.
        abort_patterns: match its message when a rank aborts: groups `rank`, and `code` or nothing.
        asks_to_end: a launcher, and a signal that it forwards to the ranks of all hosts, whose
            `exec --report` then sends SIGTERM to the program.
        mixes_packets: whether its daemon mixes the output of several ranks, but leaves packets
            whole.
        yields: setting that makes a waiting thread yield its core; None if it always does.
        registration_cache_off: setting that turns the registration cache off, as NAME=VALUE.
        uuids_misread: its misreading of a GPU that is listed by its UUID; "" if it can read UUIDs.
        rotation_note: a note for ranks whose GPUs are rotated.
        horovodrun_note: why horovodrun does not start it unchanged; "" if it does.
        rules_file: the name of the file that holds `native_rules`; "": none is needed.
    """

    name: str
    assumed_version: Version
    launchers: tuple[str, ...]
    tested = True
    family: str
    rank_variables: tuple[str, str] | None = None
    local_size_variable = ""
    srun_plugins: tuple[str, ...]
    exported = ""
    mpirun_is_shared = False
    version_command: tuple[str, ...] = ()
    info_command = ""
    agent_variable = ""
    abort_patterns: tuple[re.Pattern[bytes], ...] = ()
    asks_to_end: tuple[str, signal.Signals] | None = None
    mixes_packets = False
    yields: Setting | None = None
    registration_cache_off: tuple[str, ...] = ()
    uuids_misread = ""
    rotation_note = ""
    horovodrun_note = "horovodrun 0.28.1 does not recognize this MPI: use hvd-launch run"
    rules_file = ""

    @property
    def title(self) -> str:
        """Return the library's name for texts."""
        return mpi_libraries.LIBRARIES[self.name].title

    def recognise_mpirun(self, text: str) -> Version | None:
        """Return the version, if the library's `mpirun --version` printed this."""
        del text
        return None

    def recognise(self, text: str) -> Version | None:
        """Return the version, if this is from its MPI_Get_library_version or `version_command`."""
        return mpi_libraries.LIBRARIES[self.name].version_in(text)

    def program(self, mpirun: str, environ: Mapping[str, str]) -> str:
        """Return the program to start in place of the `mpirun` that was found."""
        del environ
        return mpirun

    def started_here(self, environ: Mapping[str, str]) -> bool:
        """Whether the library's launcher started the process that has this environment."""
        return self.rank_variables is not None and all(
            environ.get(name, "").isdecimal() for name in self.rank_variables
        )

    @abc.abstractmethod
    def arguments(self, launcher: str, job: Job, environ: Mapping[str, str]) -> list[str]:
        """Return arguments of the library's own launcher (srun's are in slurm).

        Args:
            launcher: one of `launchers`, except srun.
            job: the job to start.
            environ: the environment of the ranks.

        Raises:
            UsageError: the launcher cannot start such a job.
        """

    def settings(self) -> tuple[Setting, ...]:
        """Return the settings of a training job on any machine."""
        return (self.yields,) if self.yields else ()

    @abc.abstractmethod
    def gpu_settings(self, preset: str, environ: Mapping[str, str]) -> tuple[Setting, ...]:
        """Return a preset for jobs on GPUs; some settings depend on the job's environment."""

    def ucx_settings(self) -> tuple[Setting, ...]:
        """Return the settings that send through UCX.

        Raises:
            UsageError: the library cannot.
        """
        raise UsageError(f"{self.title} does not support UCX: leave out --ucx")

    def visibility(self, devices: Sequence[str], environ: Mapping[str, str]) -> tuple[str, str]:
        """Return which of rank.visibility.STRATEGIES suits these GPUs, and why."""
        del devices, environ
        return "all", "true ordinals are right for every MPI library"

    def components(self, listed: str) -> tuple[str, ...]:
        """Return its components, such as "pml ucx", from the output of `info_command`."""
        del listed
        return ()

    def gpu_allreduce_note(self, components: Sequence[str]) -> str:
        """Return a component that slows an allreduce of GPU buffers down, or ""."""
        del components
        return ""

    @abc.abstractmethod
    def candidates(self, nodes: int) -> Candidates:
        """Return its allreduce algorithms on this many nodes, and the variables that force them."""

    def native_rules(self, request: RuleRequest) -> NativeRules | None:
        """Return rules by message size in the library's own form; None if it has none.

        They are valid for one number of ranks: communicators of other sizes are served as before,
        unless the library's `candidates` have no base.
        """
        del request
        return None

    def built_in_selection(self, library: Path) -> str:
        """Return the built-in choices, read from the library's file; "" if none are needed."""
        del library
        return ""

    def control_variable(self, setting: Setting) -> str:
        """Return the name of a variable in MPI_T."""
        return setting.name

    def took(self, setting: Setting, actual: int | str | None) -> bool:
        """Whether MPI_T shows a setting as active; one that it does not show counts as active."""
        if actual is None:
            return True
        if isinstance(actual, int) and setting.value.isdecimal():
            return actual == int(setting.value)
        return actual == setting.value
