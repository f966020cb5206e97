"""Installs hvd_ext, hvprof and hvd_launch, and compiles their C libraries."""

from __future__ import annotations

import os
import runpy
import shlex
import subprocess
import sys
from pathlib import Path
from typing import ClassVar

from setuptools import Command, Distribution, find_packages, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build import build

# Loaded with ctypes or LD_PRELOAD: plain shared libraries, no Python extensions.
WINDOW = ("hvd_ext/shm/window.c", "hvd_ext/shm/libwindow.so")
BUILT_IN = ("hvd_ext/shm/built_in.c", "hvd_ext/shm/libbuilt_in.so")
NATIVE = (
    "hvd_ext/allreduce/algorithms/native.c",
    "hvd_ext/allreduce/algorithms/libnative.so",
)
CODEC = ("hvd_ext/compression/codec.c", "hvd_ext/compression/libcodec.so")
RECORDER = ("profiling/hvprof/recorder/pmpi.c", "hvprof/recorder/libhvprof.so")
# The recorder for programs that it is linked with, and the linker's script for that.
LINKED = (RECORDER[0], "hvprof/recorder/hvprof.o")
SCRIPT = ("profiling/hvprof/recorder/linked/script.h", "hvprof/recorder/hvprof.ld")
LIBRARIES = (WINDOW, BUILT_IN, NATIVE, CODEC, RECORDER, LINKED, SCRIPT)
ROOTS = {"hvd_ext": "hvd_ext", "hvprof": "profiling/hvprof", "hvd_launch": "launch/hvd_launch"}


def compiler() -> list[str]:
    """The C compiler: $CC or cc."""
    return shlex.split(os.environ.get("CC", "cc"))


class BuildLibraries(Command):
    """Compile the C libraries into the packages that load them."""

    description = "compile the node window, the library's allreduce, the codec and the recorder"
    user_options: ClassVar[list[tuple[str, str, str]]] = []

    def initialize_options(self) -> None:
        self.build_lib: str | None = None
        self.editable_mode = False

    def finalize_options(self) -> None:
        self.set_undefined_options("build_py", ("build_lib", "build_lib"))

    def run(self) -> None:
        cc = compiler()
        shared = ["-shared", "-fPIC", "-pthread"]
        libraries = [
            (WINDOW, [*cc, "-O3", "-fwrapv", *shared]),
            (BUILT_IN, [*cc, "-O2", *shared]),
            (NATIVE, [*cc, "-O2", *shared]),
            # One rounding for each operation, whatever the CPU can do.
            (CODEC, [*cc, "-O3", "-fwrapv", "-ffp-contract=off", *shared]),
            # It is preloaded into programs of every MPI, and into those without: it brings none.
            (RECORDER, [*cc, "-O2", *shared]),
            (LINKED, [*cc, "-O2", "-fPIC", "-pthread", "-DLINKED_RECORDER", "-c"]),
            (SCRIPT, [*cc, "-E", "-P", "-x", "c"]),
        ]
        for (source, library), command in libraries:
            target = self.place(library)
            target.parent.mkdir(parents=True, exist_ok=True)
            # Never written in place: a running program may have the old one mapped.
            draft = target.with_suffix(".draft")
            linked = ["-ldl"] if "-shared" in command else []
            command = [*command, source, "-o", str(draft), *linked]
            try:
                subprocess.run(command, check=True)
            except (OSError, subprocess.CalledProcessError):
                sys.exit(f"hvd-ext: error: cannot compile {source}: {shlex.join(command)}")
            draft.replace(target)

    def place(self, library: str) -> Path:
        """Where a library goes: next to its source if the install is editable."""
        assert self.build_lib is not None
        package, _, rest = library.partition("/")
        return Path(ROOTS[package], rest) if self.editable_mode else Path(self.build_lib, library)

    def get_source_files(self) -> list[str]:
        folders = [Path(source).parent for source, _ in LIBRARIES]
        headers = (header for folder in folders for header in folder.rglob("*.h"))
        return [*(source for source, _ in LIBRARIES), *sorted(map(str, headers))]

    def get_outputs(self) -> list[str]:
        places = (self.place(library) for _, library in LIBRARIES)
        return [str(place) for place in places if place.exists()]

    def get_output_mapping(self) -> dict[str, str]:
        return {}


class Build(build):
    """The usual build, and the C libraries."""

    sub_commands: ClassVar = [*build.sub_commands, ("build_libraries", None)]


class Wheel(bdist_wheel):
    """One wheel for every Python: the compiled libraries are no Python extensions."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


class BinaryDistribution(Distribution):
    """Makes a wheel for this platform only: it holds compiled libraries."""

    def has_ext_modules(self) -> bool:
        return True


setup(
    name="hvd-ext",
    version=runpy.run_path("hvd_ext/version.py")["VERSION"],
    description="Fast, legible distributed training on Horovod and MPI",
    long_description=Path("README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    license_files=["LICENSE"],
    classifiers=[
        "Development Status :: 4 - Beta",
        "Environment :: Console",
        "Intended Audience :: Science/Research",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: C",
        "Programming Language :: Python :: 3",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Topic :: System :: Distributed Computing",
        "Typing :: Typed",
    ],
    python_requires=">=3.10",
    package_dir=ROOTS,
    packages=[
        *find_packages(include=["hvd_ext", "hvd_ext.*"]),
        *find_packages("profiling"),
        *find_packages("launch"),
        "hvd_launch.rank.set_device_shim",
    ],
    package_data={
        "hvd_ext.arena.cuda": ["*.cu"],
        "hvd_ext.spatial.exchange.device": ["*.cu"],
        "hvprof": ["include/*"],
        "hvprof.reporters.page": ["templates/*.j2"],
        "hvd_launch.doctor": ["horovod_cmake/*.cmake", "horovod_cmake/*/*.cmake"],
        "hvd_launch.simulate": ["*.c"],
    },
    install_requires=[
        "argcomplete>=3.5",  # completion by the shell
        "jinja2>=3.1",  # the profiler's pages
        "mpi4py>=4.0",  # communicators and ranks
        "numpy>=2.0",  # gradients in memory (asarray without a copy); the profiler's arithmetic
        "rich>=13",  # tables and progress
        "zlib-ng>=1",  # zlib's checksum of a packed file, in a tenth of the time
        "scipy>=1.11",  # the profiler's intervals
    ],
    extras_require={
        # hvd_ext.torch. Not required: hvprof and hvd-launch serve other programs too, and
        # Horovod's release can be built only once torch is there (see toolchain/).
        "torch": ["torch>=2.3"],  # the first torch that takes NumPy 2
        "horovod": ["horovod>=0.28.1"],
        # The bundled trainers: reading images, the photographs of the demo, SSIM.
        "images": ["pillow>=10.1", "scikit-image>=0.22"],
        # Arrays of other formats, which `python -m hvd_ext.data pack` reads.
        "arrays": ["h5py>=3.8", "zarr>=3"],
        # HVD_EXT_AUDIT: fingerprints of gradients, at the speed of memory.
        "audit": ["xxhash>=3"],
        # hvprof export: metrics in Prometheus' format, and by OTLP.
        "metrics": [
            "opentelemetry-exporter-otlp-proto-http>=1.25",
            "opentelemetry-sdk>=1.25",
            "prometheus-client>=0.20",
        ],
        # hvprof hang: the line of Python that a rank runs.
        "stacks": ["py-spy>=0.3.14"],
        # --tensorboard of the trainers.
        "tensorboard": ["tensorboard"],
        # Pictures of benchmarks.
        "plot": ["matplotlib>=3.8"],
        # Those of examples/frameworks/.
        "frameworks": ["accelerate", "lightning", "transformers"],
        # Models of others, which tests/support/spatial/public_models.py splits.
        "models": [
            "basicsr",
            "dynamic-network-architectures",
            "monai",
            "timm",
            "torchvision",
        ],
        # The documentation site.
        "docs": ["furo", "myst-parser", "sphinx>=8", "sphinx-argparse"],
        "dev": [
            "einops",  # what models of others call on tensors
            "h5py",  # universes, for cosmoflow.prepare; a source of `hvd_ext.data pack`
            "hypothesis",
            "mypy",
            "psutil",
            "pytest>=8",
            "pytest-timeout",
            "pytest-xdist",
            "ruff",
            "scikit-learn",  # handwritten digits
            "tensorboard",
            "zarr>=3; python_version >= '3.11'",  # another source
        ],
    },
    entry_points={
        "console_scripts": [
            "hvprof = hvprof.cli:entry",
            "hvd-launch = hvd_launch.cli:entry",
        ],
        # PyTorch 2.14 and newer find init_process_group("hvd_ext") by this.
        "torch.distributed.backends": ["hvd_ext = hvd_ext.c10d:register"],
        # PyTorch calls it when it is imported.
        "torch.backends": ["hvd_ext = hvd_ext.recorded:at_import_of_torch"],
    },
    cmdclass={"bdist_wheel": Wheel, "build": Build, "build_libraries": BuildLibraries},
    distclass=BinaryDistribution,
)
