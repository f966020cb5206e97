"""Which room may import which, read from the source, and that importing starts nothing."""

from __future__ import annotations

import ast
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = {
    "hvd_ext": ROOT / "hvd_ext",
    "hvprof": ROOT / "profiling" / "hvprof",
    "hvd_launch": ROOT / "launch" / "hvd_launch",
    **{name: ROOT / name for name in ("training", "edsr", "resnet", "benchmarks")},
    **{name: ROOT / name for name in ("mesh", "cosmoflow", "testbed")},
}

FACTS = {
    *("hvd_ext.errors", "hvd_ext.units", "hvd_ext.events", "hvd_ext.dtypes"),
    *(
        "hvd_ext.cli",
        "hvd_ext.script",
        "hvd_ext.schedules",
        "hvd_ext.variables",
        "hvd_ext.version",
        "hvd_ext.audit",
        "hvd_ext.timeline",
    ),
    *("hvd_ext.system", "hvd_ext.arithmetic"),
    *("hvd_ext.named_waits", "hvd_ext.horovod_waits"),
}
MPI = {*FACTS, "mpi4py", "numpy"}
SHOWN = {"rich", "numpy", "matplotlib"}
_SPATIAL = {*MPI, "torch", "hvd_ext.tensors", "hvd_ext.job"}
SPATIAL: dict[str, set[str]] = {
    "hvd_ext.spatial": _SPATIAL,
    # Geometry is integers: no torch, no MPI.
    "hvd_ext.spatial.geometry": set(),
    "hvd_ext.spatial.exchange": {*_SPATIAL, "hvd_ext.spatial.geometry"},
    # Halos between GPUs, by the pieces of the arena on GPUs.
    "hvd_ext.spatial.exchange.device": {
        *(*_SPATIAL, "cupy", "hvd_ext.shm", "hvd_ext.arena.cuda", "hvd_ext.spatial.exchange"),
    },
    "hvd_ext.spatial.layers": {*_SPATIAL, "hvd_ext.spatial"},
    "hvd_ext.spatial.tools": {*_SPATIAL, "hvd_ext.spatial"},
}
_RECORDED = {*FACTS, "numpy", "hvprof.printable", "hvprof.machine", "hvprof.model"}
_LOADED = {*_RECORDED, "hvprof.format", "hvprof.recording"}
_REPORTED = {*_LOADED, "hvprof.layers", "hvprof.analysis", "hvprof.reporters"}
HVPROF: dict[str, set[str]] = {
    "hvprof": FACTS,
    "hvprof.format": _RECORDED,
    "hvprof.recording": _LOADED,
    # Times the layers of a model, and imports torch when it is asked to.
    "hvprof.layers": {*FACTS, "hvprof.printable", "torch"},
    "hvprof.analysis": {*_LOADED, "hvprof.layers", "scipy"},
    "hvprof.importers": _LOADED,
    "hvprof.live": _LOADED,
    # What hvprof watch and export show of a running job.
    "hvprof.reporters": {
        *(*_REPORTED, "hvprof.live", "rich", "jinja2", "markupsafe"),
        *("prometheus_client", "opentelemetry"),
    },
    "hvprof.commands": {*_REPORTED, "hvprof.importers", "hvprof.live", "rich"},
}
TRAINED = {
    *(*SHOWN, *FACTS, "hvd_ext", "hvd_ext.torch", "torch", "PIL", "skimage", "training"),
    "hvd_ext.data",
    "hvd_ext.compression.formats",
}

# What each room may import besides Python's own library and itself. The longest name
# that fits a module is its room; a module without a room fails the test. Within a room
# `test_files_form_no_circle` keeps the order.
MAY_IMPORT: dict[str, set[str]] = {
    **dict.fromkeys(FACTS, FACTS),
    # Not standard library alone: whoever compares times has measured them, and has numpy.
    "hvd_ext.arithmetic": {*FACTS, "numpy", "scipy"},
    # Draws its progress bar, when it has one to draw.
    "hvd_ext.cli": {*FACTS, "argcomplete", "rich"},
    "hvd_ext.__init__": FACTS,
    "hvd_ext.__main__": {*FACTS, "hvd_ext.torch"},
    # PyTorch calls it; it knows what to watch in a process that is recorded.
    "hvd_ext.recorded": {*FACTS, "hvd_ext.c10d"},
    "hvd_ext.tensors": {"numpy", "torch"},
    # From here on each room knows those above it.
    "hvd_ext.job": MPI,
    "hvd_ext.shm": {*MPI, "hvd_ext.job"},
    "hvd_ext.allreduce": {*MPI, "hvd_ext.job", "hvd_ext.shm", "cupy", "rich"},
    "hvd_ext.compression": {*MPI, "hvd_ext.allreduce"},
    "hvd_ext.arena": {
        *(*MPI, "hvd_ext.job", "hvd_ext.shm", "hvd_ext.allreduce", "hvd_ext.compression"),
    },
    "hvd_ext.arena.cuda": {
        *(*MPI, "cupy", "hvd_ext.job", "hvd_ext.shm", "hvd_ext.allreduce", "hvd_ext.compression"),
        "hvd_ext.arena",
    },
    # What moves data for a group of ranks, for every door: no torch.
    "hvd_ext.engine": {*MPI, "hvd_ext.job", "hvd_ext.shm", "hvd_ext.allreduce"},
    "hvd_ext.torch": {
        *MPI,
        *("torch", "horovod", "hvd_ext", "hvd_ext.tensors"),
        *("hvd_ext.job", "hvd_ext.shm", "hvd_ext.allreduce", "hvd_ext.compression"),
        "hvd_ext.arena",
    },
    # Fingerprints of what the optimizer has.
    "hvd_ext.torch.audit": {
        *(*MPI, "torch", "xxhash", "hvd_ext.tensors", "hvd_ext.job", "hvd_ext.torch"),
    },
    # Horovod's interface where Horovod is not installed: it knows neither that nor the optimizer.
    "hvd_ext.torch.standalone": {
        *MPI,
        "torch",
        "hvd_ext.tensors",
        "hvd_ext.job",
        "hvd_ext.allreduce",
    },
    # torch.distributed, without Horovod.
    "hvd_ext.c10d": {
        *(*MPI, "torch", "hvd_ext.tensors", "hvd_ext.job", "hvd_ext.shm", "hvd_ext.allreduce"),
        *("hvd_ext.compression", "hvd_ext.arena", "hvd_ext.engine"),
    },
    # Samples: no torch, and MPI only where ranks read, stage or keep them together.
    "hvd_ext.data": MPI,
    # Reads what others wrote, if their libraries are there.
    "hvd_ext.data.packed": {*MPI, "hvd_ext.data", "zlib_ng", "PIL", "h5py", "zarr"},
    "hvd_ext.data.staging": {*MPI, "hvd_ext.data", "hvd_ext.job", "zlib_ng"},
    "hvd_ext.data.store": {*MPI, "hvd_ext.data", "hvd_ext.job", "hvd_ext.shm"},
    **SPATIAL,
    **HVPROF,
    "hvd_launch": {*FACTS, "hvd_ext.allreduce.table"},
    # Draw their screens, when they have one to draw.
    "hvd_launch.commands": {*FACTS, "hvd_ext.allreduce.table", "hvd_launch", "rich"},
    # Loads MPI and Horovod in processes apart from its own.
    "hvd_launch.doctor": {*FACTS, "hvd_launch", "mpi4py", "horovod"},
    # Runs the algorithms with a communicator that writes lines: numpy, no MPI.
    "hvd_launch.simulate": {*FACTS, "hvd_ext.allreduce", "numpy", "scipy"},
    # Measures with the ranks that it starts, and draws.
    "hvd_launch.tune": {
        *(*MPI, *SHOWN, "scipy", "hvd_ext.job", "hvd_ext.allreduce"),
        *("hvd_launch", "hvd_launch.simulate"),
    },
    "training": {*TRAINED, "hvprof", "hvd_ext.spatial", "hvd_ext.c10d", "mpi4py"},
    "mesh": {*TRAINED, "hvd_ext.spatial"},
    # Reads HDF5, if its library is there.
    "cosmoflow": {*TRAINED, "hvd_ext.spatial", "h5py"},
    "edsr": {*TRAINED, "hvprof", "hvd_ext.spatial"},
    "resnet": {*TRAINED, "hvprof", "sklearn"},
    # What tests and benchmarks share.
    "testbed": {*FACTS, "numpy"},
    # The trainers' models and EDSR's evaluation; no training loop.
    "benchmarks": {
        *(*TRAINED, "testbed", "hvprof", "hvd_launch", "horovod", "mpi4py", "scipy", "sklearn"),
        *("hvd_ext.job", "hvd_ext.allreduce", "hvd_ext.arena", "hvd_ext.spatial", "hvd_ext.c10d"),
        *("edsr", "resnet.model", "mesh.model", "cosmoflow.model", "hvd_ext.engine", "hvd_ext.shm"),
    },
}


def modules() -> Iterator[tuple[str, Path]]:
    for package, folder in SOURCES.items():
        for path in sorted(folder.rglob("*.py")):
            yield ".".join((package, *path.relative_to(folder).with_suffix("").parts)), path


MODULES = dict(modules())


def covers(prefix: str, name: str) -> bool:
    # hvd_ext as such is its public screen, not every room below it.
    return name == prefix or (prefix != "hvd_ext" and name.startswith(f"{prefix}."))


def imported(path: Path) -> Iterator[str]:
    """Full names of the modules a file imports, those only for type checks included."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.module, f"{path}: imports are written in full"
            assert node.level == 0, f"{path}: imports are written in full"
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                known = name in MODULES or f"{name}.__init__" in MODULES
                yield name if known else node.module


def test_every_package_was_found() -> None:
    assert {name.split(".")[0] for name in MODULES} == set(SOURCES)


def test_every_room_is_a_folder() -> None:
    """Plain facts apart, hvd_ext's three entrances, and tensors."""
    entrances = {"hvd_ext.__init__", "hvd_ext.__main__", "hvd_ext.recorded"}
    for room in MAY_IMPORT.keys() - FACTS - entrances - {"hvd_ext.tensors"}:
        package, *inner = room.split(".")
        assert SOURCES[package].joinpath(*inner).is_dir(), f"{room} is no folder"


@pytest.mark.parametrize("module", MODULES)
def test_a_module_imports_only_what_its_room_may_know(module: str) -> None:
    rooms = [room for room in MAY_IMPORT if covers(room, module)]
    assert rooms, f"{module} is in no room: give it one in MAY_IMPORT"
    room = max(rooms, key=len)
    allowed = {room, room.removesuffix(".__init__"), *MAY_IMPORT[room]}
    if "." not in room:
        allowed.add(module.split(".")[0])
    strangers = {
        name
        for name in imported(MODULES[module])
        if name.split(".")[0] not in sys.stdlib_module_names
        and not any(covers(prefix, name) for prefix in allowed)
    }
    assert not strangers, f"{module} (room {room}) may not import {sorted(strangers)}"


def room_of(module: str) -> str:
    named = module if module in MODULES else f"{module}.__init__"
    return max((room for room in MAY_IMPORT if covers(room, named)), key=len)


def test_rooms_form_no_circle() -> None:
    known: dict[str, set[str]] = {room: set() for room in MAY_IMPORT}
    for module, path in MODULES.items():
        room = room_of(module)
        for name in imported(path):
            if name.split(".")[0] in SOURCES:
                other = room_of(name)
                # A room with rooms in it is one house: those know it, and it knows them.
                if not covers(room, other) and not covers(other, room):
                    known[room].add(other)
    while leaves := {room for room, others in known.items() if not others}:
        known = {room: others - leaves for room, others in known.items() if room not in leaves}
    assert not known, f"these rooms import one another: {known}"


def test_files_form_no_circle() -> None:
    """Imports for annotations included: a file can be understood by those below it."""
    known: dict[str, set[str]] = {
        module: {
            name if name in MODULES else f"{name}.__init__"
            for name in imported(path)
            if name.split(".")[0] in SOURCES
        }
        for module, path in MODULES.items()
    }
    while leaves := {module for module, others in known.items() if not others}:
        known = {m: others - leaves for m, others in known.items() if m not in leaves}
    # Without those that only import a circle, or what imports one.
    while roots := known.keys() - {name for others in known.values() for name in others}:
        known = {m: others for m, others in known.items() if m not in roots}
    assert not known, f"these files import one another: {known}"


PROGRAMS = [
    *MODULES.values(),
    *sorted((ROOT / "toolchain").glob("*.py")),
    *(path for room in SOURCES.values() for path in sorted(room.rglob("*.[ch]"))),
]


MOST_LINES, MOST_FILES = 500, 20


def test_files_and_folders_can_be_read_at_a_sitting() -> None:
    """Long ones are named in a warning: whether they do one thing still is for people to say."""
    for path in PROGRAMS:
        lines = len(path.read_text(encoding="utf-8").splitlines())
        if lines > MOST_LINES:
            warnings.warn(f"{path.relative_to(ROOT)} has {lines} lines", stacklevel=1)
    for folder in sorted({path.parent for path in PROGRAMS}):
        count = sum(path.parent == folder for path in PROGRAMS)
        if count > MOST_FILES:
            warnings.warn(f"{folder.relative_to(ROOT)} has {count} files", stacklevel=1)


IMPORT_ALL = """
import importlib, os, sys, threading
before = dict(os.environ)
for name in sys.argv[1:]:
    importlib.import_module(name)
changed = {n for n in before.keys() | os.environ.keys() if before.get(n) != os.environ.get(n)}
assert not changed, f"environment changed: {changed}"
assert threading.active_count() == 1, threading.enumerate()
if "mpi4py.MPI" in sys.modules:
    assert not sys.modules["mpi4py.MPI"].Is_initialized(), "MPI was started"
"""


@pytest.mark.parametrize(
    "packages",
    [("hvd_ext", "hvprof", "hvd_launch"), ("hvd_ext.torch",), ("hvd_ext.c10d",)],
    ids=" ".join,
)
def test_importing_starts_no_mpi_and_sets_no_variable(packages: tuple[str, ...]) -> None:
    folders = [str(folder.parent) for folder in SOURCES.values()]
    code = f"import sys; sys.path[:0] = {folders}\n{IMPORT_ALL}"
    done = subprocess.run(
        [sys.executable, "-c", code, *packages], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_the_profiler_and_the_launcher_do_without_torch_and_mpi() -> None:
    heavy = ("torch", "horovod", "mpi4py")
    code = (
        f"import sys; sys.path[:0] = {[str(f.parent) for f in SOURCES.values()]}\n"
        f"for name in {heavy}: sys.modules[name] = None\n"
        "import hvd_ext, hvd_ext.allreduce.table, hvprof.cli, hvd_launch.cli"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_training_script_starts_without_scipy() -> None:
    """Which takes half a second of each rank, and serves reports."""
    code = (
        f"import sys; sys.path[:0] = {[str(f.parent) for f in SOURCES.values()]}\n"
        "sys.modules['scipy'] = None\n"
        "import hvd_ext.torch, hvd_ext.spatial, hvprof, edsr.train, resnet.train"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
