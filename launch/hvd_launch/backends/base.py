"""Base class of MPI libraries: all that hvd-launch has to know of one.

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
# The reason to have a library yield.
YIELDS = "a thread that waits in MPI, such as Horovod's, leaves its core to one that computes"


class MpiLibrary(abc.ABC):
    """An MPI library: how it is recognized, started and set. Pure.

    Attributes:
        name: as --backend takes it.
        assumed_version: where the library is named and not found on this machine.
        launchers: what starts its ranks, of LAUNCHERS, the usual one first.
        tested: this project's tests have run it.
        family: libraries that set the same rank variables share it.
        rank_variables: those that its launcher sets: rank, local rank; None: no own ones.
        local_size_variable: where it sets the number of this host's ranks; "": nowhere.
        srun_plugins: what its ranks can talk to (Slurm's MPI guide), the best first.
        exported: matches the names of its variables that ranks on other hosts need and its
            launcher does not pass on unasked.
        mpirun_is_shared: other libraries' mpirun says the same of its version.
        version_command: a program next to mpirun that reports the library, and its arguments.
        info_command: a program next to mpirun that lists the library's components.
        agent_variable: who sets it has a way to other hosts that is not ssh's.
        abort_patterns: what it prints when a rank aborts: groups `rank`, and `code` or nothing.
        asks_to_end: a launcher, and a signal that it forwards to the ranks of all hosts, whose
            `exec --report` then sends SIGTERM to the program.
        mixes_packets: its daemon mixes what it reads of several ranks, but leaves packets whole.
        yields: setting with which a waiting thread leaves its core; None: it always does.
        registration_cache_off: what turns the registration cache off, as NAME=VALUE.
        uuids_misread: what it takes a GPU for that is listed by its UUID; "": it can read them.
        rotation_note: what to know where a rank's GPUs are rotated.
        horovodrun_note: why horovodrun does not start it as it is; "": it does.
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
        """The library as a person calls it."""
        return mpi_libraries.LIBRARIES[self.name].title

    def recognise_mpirun(self, text: str) -> Version | None:
        """The version, if this is what the library's `mpirun --version` prints."""
        del text
        return None

    def recognise(self, text: str) -> Version | None:
        """The version, if MPI_Get_library_version or `version_command` said this."""
        return mpi_libraries.LIBRARIES[self.name].version_in(text)

    def program(self, mpirun: str, environ: Mapping[str, str]) -> str:
        """Program to start in place of the `mpirun` that was found."""
        del environ
        return mpirun

    def started_here(self, environ: Mapping[str, str]) -> bool:
        """Whether the library's launcher started the process that has this environment."""
        return self.rank_variables is not None and all(
            environ.get(name, "").isdecimal() for name in self.rank_variables
        )

    @abc.abstractmethod
    def arguments(self, launcher: str, job: Job, environ: Mapping[str, str]) -> list[str]:
        """Arguments of the library's own launcher (srun's are in slurm).

        Args:
            launcher: one of `launchers`, srun aside.
            job: what is to be started.
            environ: the environment that the ranks are to have.

        Raises:
            UsageError: the launcher cannot do what the job asks for.
        """

    def settings(self) -> tuple[Setting, ...]:
        """Settings of a training job on any machine."""
        return (self.yields,) if self.yields else ()

    @abc.abstractmethod
    def gpu_settings(self, preset: str, environ: Mapping[str, str]) -> tuple[Setting, ...]:
        """A preset for jobs on GPUs; some settings depend on the job's environment."""

    def ucx_settings(self) -> tuple[Setting, ...]:
        """Sends through UCX.

        Raises:
            UsageError: the library cannot.
        """
        raise UsageError(f"{self.title} does not support UCX: leave out --ucx")

    def visibility(self, devices: Sequence[str], environ: Mapping[str, str]) -> tuple[str, str]:
        """Which of rank.visibility.STRATEGIES suits it for these GPUs, and why."""
        del devices, environ
        return "all", "true ordinals are right for every MPI library"

    def components(self, listed: str) -> tuple[str, ...]:
        """Its components, such as "pml ucx", from what `info_command` printed."""
        del listed
        return ()

    def gpu_allreduce_note(self, components: Sequence[str]) -> str:
        """Component that slows an allreduce of GPU buffers down; "" without one."""
        del components
        return ""

    @abc.abstractmethod
    def candidates(self, nodes: int) -> Candidates:
        """Its allreduce algorithms on so many nodes, and the variables that force them."""

    def native_rules(self, request: RuleRequest) -> NativeRules | None:
        """Rules by message size in the library's own form; None where it has none.

        They hold for one number of ranks, unless the library's `candidates` have no base: a
        communicator of another size is served as before.
        """
        del request
        return None

    def built_in_selection(self, library: Path) -> str:
        """The built-in choices, read from the library's file; "" where none are needed."""
        del library
        return ""

    def control_variable(self, setting: Setting) -> str:
        """The name under which MPI_T knows a variable."""
        return setting.name

    def took(self, setting: Setting, actual: int | str | None) -> bool:
        """Whether MPI_T shows a setting in force; one that it does not show counts as in force."""
        if actual is None:
            return True
        if isinstance(actual, int) and setting.value.isdecimal():
            return actual == int(setting.value)
        return actual == setting.value
