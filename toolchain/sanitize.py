"""Runs the tests of the C parts with the compiler's sanitizers: `make sanitize`.

A copy of the checkout in build/sanitize gets the C libraries with the address and the undefined
sanitizer; its tests then run with their own library preloaded. Programs with several threads run
the window and the recorder with the thread sanitizer, which cannot be preloaded into a Python.
Standard library only. A report of a sanitizer, or a failed test, ends it with 1.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

from workshop import ROOT, Failure

PYTHON = ROOT / ".venv" / "bin" / "python"
# That of `make env MPI=system` is on PATH.
MPICC = shutil.which("mpicc", path=f"{PYTHON.parent}{os.pathsep}{os.environ['PATH']}") or "mpicc"
FOLDER = ROOT / "build" / "sanitize"
COPIED = (
    *("hvd_ext", "profiling", "launch", "testbed", "training", "tests"),
    *("setup.py", "README.md", "LICENSE"),
)
COPIED += ("pyproject.toml", "edsr", "resnet", "mesh", "cosmoflow", "benchmarks", "examples")
SANITIZERS = "-g -fno-omit-frame-pointer -fsanitize=address,undefined"
# Undefined behavior ends in a trap, which the address sanitizer reports to its log: the undefined
# sanitizer has none in a preloaded library. Each trap keeps its line.
SANITIZERS += " -fsanitize-undefined-trap-on-error -fno-crossjumping -fno-tree-tail-merge"
# The sanitizer looks for C++'s functions as it is loaded, and in a program without C++ a library
# that MPI loads later may throw.
SANITIZERS += " -Wl,--push-state,--no-as-needed -lstdc++ -Wl,--pop-state"
# What the C parts do, with one rank and with several.
TESTS = (
    *(
        "tests/single/job/test_shm.py",
        "tests/single/compression/test_codec.py",
        "tests/single/arena/test_layout.py",
    ),
    *("tests/single/arena/test_copies.py", "tests/single/allreduce/test_kernels.py"),
    *("tests/single/data/test_packed.py", "tests/single/hvprof/test_record.py"),
    *("tests/single/hvprof/test_record_files.py", "tests/single/hvprof/test_handles.py"),
    *("tests/parallel/hvprof/test_sites.py", "tests/parallel/hvprof/test_fortran.py"),
    "tests/parallel/hvprof/test_recorder.py",
    *("tests/parallel/job/test_regions.py", "tests/parallel/arena/test_sums.py"),
    *("tests/parallel/allreduce/test_persistent.py", "tests/parallel/allreduce/test_started.py"),
    *("tests/parallel/allreduce/test_staged.py", "tests/parallel/arena/test_half_extremes.py"),
    *("tests/parallel/compression/test_exchange.py", "tests/parallel/allreduce/test_allreduce.py"),
    *("tests/parallel/engine/test_collectives.py", "tests/parallel/engine/test_copied_once.py"),
    *("tests/parallel/c10d/test_backend.py", "tests/parallel/c10d/test_backend_mismatch.py"),
    *("tests/parallel/c10d/test_backend_work.py", "tests/parallel/data/test_store.py"),
)
# The sanitizer keeps freed memory for a while, so a test that measures memory would fail.
CHOSEN = ("-m", "not long", "-k", "not memory_stays_flat")
THREADS = (
    ("tests/programs/arena/window_threads.c", ["cc", "-Ihvd_ext/shm"], [[]]),
    (
        "tests/programs/hvprof/recorder_threads.c",
        [MPICC, "profiling/hvprof/recorder/pmpi.c", "-Wno-tsan"],
        [[], ["begun-before-MPI"]],
    ),
)
# UCX's hooks into malloc run where the sanitizer no longer does, at a thread's end.
WITHOUT_UCX = {"OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "self,vader", "OMPI_MCA_osc": "^ucx"}
WITHOUT_UCX |= {"OMPI_MCA_coll": "^hcoll", "UCX_MEM_EVENTS": "n"}
# No launcher starts the programs: Open MPI would look for its daemon.
ALONE = {"OMPI_MCA_ess_singleton_isolated": "1"}
# MPI libraries are not compiled for the thread sanitizer, which sees half of what they do.
SUPPRESSIONS = "".join(
    f"{kind}:{library}\n"
    for kind in ("called_from_lib", "race")
    for library in ("libmpi", "libopen-pal", "libopen-rte", "libpmix", "libevent", "mca_")
)


def run(command: list[str], folder: Path, **variables: str) -> None:
    """Run a command, with variables set.

    Raises:
        Failure: it ended with another code than 0.
    """
    done = subprocess.run(command, cwd=folder, env=os.environ | variables, check=False)
    if done.returncode:
        raise Failure(f"{' '.join(command)} ended with code {done.returncode}")


def library(name: str) -> str:
    """The path of one of the compiler's own libraries.

    Raises:
        Failure: the compiler has none.
    """
    asked = ["cc", f"-print-file-name={name}"]
    path = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    if not Path(path).is_absolute():
        raise Failure(f"the compiler has no {name}: apt install gcc, or set CC to one that has")
    return path


def copy() -> Path:
    """The checkout, with sanitized C libraries in place of the usual ones."""
    copied = FOLDER / "checkout"
    shutil.rmtree(copied, ignore_errors=True)
    copied.mkdir(parents=True)
    ignored = shutil.ignore_patterns("*.so", "__pycache__")
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, copied / name, ignore=ignored)
        else:
            shutil.copy(source, copied / name)
    compiler = f"cc {SANITIZERS}"
    run([str(PYTHON), "setup.py", "-q", "build_libraries"], copied, CC=compiler)
    (built,) = (copied / "build").glob("lib*")
    for path in built.rglob("*.so"):
        relative = path.relative_to(built)
        package = copied / "profiling" if relative.parts[0] == "hvprof" else copied
        shutil.move(path, package / relative)
    return copied


def test_addresses(arguments: list[str]) -> None:
    """Run the tests in the copy; a report ends the process that it is of.

    Reports are files too, as a test may expect that a program fails, or not print why.

    Raises:
        Failure: a test failed, or a sanitizer reported something.
    """
    copied = copy()
    reports = FOLDER / "reports"
    shutil.rmtree(reports, ignore_errors=True)
    reports.mkdir()
    try:
        run_tests(copied, f"log_path={reports}/report", arguments)
    finally:
        found = sorted(reports.iterdir())
        for report in found:
            print(report.read_text(errors="replace"), flush=True)
    if found:
        raise Failure(f"{len(found)} reports of a sanitizer: see {reports}")


def run_tests(copied: Path, log: str, arguments: list[str]) -> None:
    """Run tests of the copy with the address and the undefined sanitizer."""
    run(
        [str(PYTHON), "-m", "pytest", "-q", "--timeout", "900", *CHOSEN, *arguments],
        copied,
        LD_PRELOAD=f"{library('libasan.so')} {library('libstdc++.so.6')}",
        # Python and MPI keep memory until they end. The recorder is preloaded ahead.
        ASAN_OPTIONS="detect_leaks=0:verify_asan_link_order=0:abort_on_error=1:handle_sigill=2:"
        + log,
        PYTHONMALLOC="malloc",
    )


def test_threads() -> None:
    """Compile and run the programs with several threads."""
    suppressions = FOLDER / "threads.supp"
    suppressions.write_text(SUPPRESSIONS)
    for source, compiler, runs in THREADS:
        program = FOLDER / Path(source).stem
        flags = ["-g", "-O1", "-fsanitize=thread", "-pthread", source, "-o", str(program), "-ldl"]
        run([*compiler, *flags], ROOT)
        # The sanitizer fails where the kernel spreads a program's addresses too far.
        command = ["setarch", platform.machine(), "-R", str(program)]
        options = f"halt_on_error=1:suppressions={suppressions}"
        for arguments in runs:
            run([*command, *arguments], FOLDER, TSAN_OPTIONS=options, **WITHOUT_UCX, **ALONE)


def main() -> None:
    """Run both; arguments are tests to run in place of the usual ones."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    try:
        test_threads()
        test_addresses(sys.argv[1:] or list(TESTS))
    except Failure as failure:
        sys.exit(f"make sanitize: error: {failure}")


if __name__ == "__main__":
    main()
