"""The blocks of the pages: which results each needs, and its Markdown."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import mean
from typing import Any

from benchmarks.figures.advice import advice
from benchmarks.figures.forecasts import scaling_forecast
from benchmarks.figures.growth import growth
from benchmarks.figures.markdown import (
    measured_on,
    number,
    origin,
    ratio,
    ratio_of_rounds,
    spread,
    table,
)
from benchmarks.figures.support import support
from hvd_ext.units import format_bytes

Results = Mapping[str, Any]
MODELS = {
    "small_2000": "2,000 parameters of 64",
    "edsr_demo": "EDSR, 4 blocks of 32",
    "edsr_baseline": "EDSR, 16 blocks of 64",
    "edsr_full": "EDSR, 32 blocks of 256",
    "resnet50": "ResNet-50, 64 pixels",
    "resnet50_224": "ResNet-50, 224 pixels",
}
# In README. The 2,000 parameters are a test of overhead, not a model.
SHOWN = ("edsr_demo", "edsr_baseline", "edsr_full", "resnet50")
ARMS = {
    "horovod": "Horovod",
    "horovod_by_hand": "Horovod, tuned",
    "ddp": "torch DDP on Gloo",
    "hvd_ext": "hvd_ext",
    "hvd_ext_sharded": "hvd_ext, sharded",
    "alone_together": "no exchange, a barrier a step",
    "alone": "no communication",
}
TORCH_DISTRIBUTED = tuple(
    f"training_step_ddp_{where}" for where in ("np2", "np4", "hosts2", "hosts4")
)
FORMATS = {
    "none": "none",
    "direct": "none, algorithm `direct`",
    "bf16": "bf16",
    "int8": "int8",
    "powersgd": "powersgd(rank=4)",
    "auto": "auto",
    "horovod": "Horovod",
    "horovod_fp16": "Horovod's fp16",
    "gloo_fp16": "Gloo, as torch's fp16_compress_hook",
    "gloo_powersgd": "Gloo, torch's powerSGD_hook",
}
# What README's table and chart compare with.
SPEEDUPS = {
    "ratio_vs_horovod": "Horovod's defaults",
    "ratio_vs_horovod_by_hand": "tuned Horovod",
}
# Message sizes that the table of the strongest peers shows; it also has all where a peer is faster.
_PEERS_SHOWN = (64, 1 << 10, 16 << 10, 256 << 10, 4 << 20, 64 << 20)
# Below this, a speedup is within the difference of two runs.
_ABOUT_EQUAL = 1.05


def performance(results: Results) -> str:
    """README's chart, its speedups, and a verdict over tuned Horovod."""
    result = results["training_step"]
    cases = [case for case in result["cases"] if case["model"] in SHOWN]
    rows = [
        (MODELS[case["model"]], *(ratio_of_rounds(case[f"{key}_of_rounds"]) for key in SPEEDUPS))
        for case in cases
    ]
    faster, equal = (
        " and ".join(
            MODELS[case["model"]]
            for case in cases
            if (case["ratio_vs_horovod_by_hand_of_rounds"]["low"] >= _ABOUT_EQUAL) == beyond
        )
        for beyond in (True, False)
    )
    verdicts = [f"faster than tuned Horovod on {faster}"] if faster else []
    verdicts += [f"about as fast as tuned Horovod, without tuning, on {equal}"] if equal else []
    columns = ("speedup of hvd_ext", *(f"over {peer}" for peer in SPEEDUPS.values()))
    return "\n\n".join(
        (
            "![Speedup of hvd_ext over Horovod, by model](docs/images/performance.png)",
            table(columns, rows),
            f"In this run on {result['size']} ranks, hvd_ext was {', and '.join(verdicts)}; other "
            "runs and machines differ. Chart and table have the median ratio of the rounds and "
            f"their middle half. {measured_on(result)}: `make bench`.",
        )
    )


def training_speedups(results: Results) -> str:
    result = results["training_step"]
    columns = ["median ratio of rounds", "Horovod", "Horovod, tuned", "DDP"]
    columns += ["no communication", "the same, sharded"]
    keys = ["ratio_vs_horovod", "ratio_vs_horovod_by_hand", "ratio_vs_ddp"]
    keys += ["efficiency", "efficiency_sharded"]
    rows = [
        (
            MODELS[case["model"]],
            *(ratio_of_rounds(case[f"{k}_of_rounds"]) if k in case else "" for k in keys),
        )
        for case in result["cases"]
    ]
    return f"{table(columns, rows)}\n\n{origin(result)}"


def torch_distributed(results: Results) -> str:
    """Steps of DDP and FSDP2, on Gloo alone and with hvd_ext, on one node and between hosts."""
    parts = []
    for name in TORCH_DISTRIBUTED:
        result = results[name]
        rows = []
        for case in result["cases"]:
            arms = case["arms"]
            hosts = case.get("hosts", 1)
            where = f"{hosts} emulated hosts" if hosts > 1 else f"{case['ranks']} ranks"
            rows += [
                (
                    f"{MODELS[case['model']]}, {title}, {where}",
                    *(spread(arms[arm]["step_ms"]) for arm in (plain, ours)),
                    ratio_of_rounds(case[f"{key}_of_rounds"]),
                )
                for title, plain, ours, key in (
                    ("DDP, `attach`", "ddp", "ddp_hvd_ext", "ratio_ddp"),
                    ("DDP, the backend", "ddp", "ddp_backend", "ratio_ddp_backend"),
                    ("DDP in 16 bits", "ddp_fp16", "ddp_hvd_ext_bf16", "ratio_ddp_16_bits"),
                    ("FSDP2, `fsdp.use`", "fsdp", "fsdp_hvd_ext", "ratio_fsdp"),
                )
                if ours in arms
            ]
        columns = ("ms a step", "Gloo", "with hvd_ext", "median ratio of rounds")
        parts.append(f"{table(columns, rows)}\n\n{origin(result)}")
    return "\n\n".join(parts)


def memory(results: Results) -> str:
    """The largest memory of a rank, and of that the optimizer's state."""
    result = results["training_step"]
    arms = [name for name in ARMS if all(name in case["arms"] for case in result["cases"])]
    # Earlier results have the peak that the kernel counts to each rank.
    divided = all("memory_bytes" in case["arms"][name] for case in result["cases"] for name in arms)
    key = "memory_bytes" if divided else "peak_memory_bytes"
    counted = (
        "The kernel divides shared pages among the ranks that map them (PSS)."
        if divided
        else "The kernel counts shared pages in every rank that maps them (VmHWM), so the arena of "
        "a node counts once for each rank, and a sharded optimizer's parameters do too."
    )
    rows = [
        (
            MODELS[case["model"]],
            *(
                f"{number(case['arms'][name][key] / 1e6)} "
                f"({number(case['arms'][name]['optimizer_state_bytes'] / 1e6)})"
                for name in arms
            ),
        )
        for case in result["cases"]
    ]
    columns = ("MB", *(ARMS[name] for name in arms))
    return f"{table(columns, rows)}\n\n{counted} {origin(result)}"


def training_parts(results: Results) -> str:
    result = results["training_step"]
    parts = []
    for case in result["cases"]:
        rows = []
        for name, title in ARMS.items():
            if (arm := case["arms"].get(name)) is None:
                continue
            used = arm["made_of"]["threads"]
            others = sum(of["cpu_ms"] for thread, of in used.items() if thread != "training")
            rows.append(
                (
                    title,
                    spread(arm["step_ms"]),
                    *(number(arm["made_of"]["phases_ms"][p]) for p in ("backward", "update")),
                    number(used["training"]["cpu_ms"]),
                    number(used["training"]["run_queue_wait_ms"]),
                    number(others),
                )
            )
        columns = ("ms", "step", "backward", "update", "on a core", "waiting for a core")
        parts.append(f"{case['about']}:\n\n{table((*columns, 'other threads'), rows)}")
    return "\n\n".join(parts)


def exchanges(results: Results) -> str:
    """The exchange of gradients alone, and of short tensors."""
    rows = []
    for name in ("gradient_exchange_np2", "gradient_exchange_np4"):
        result = results[name]
        times = result["time_ms"]
        what = f"ResNet-50's gradients, {result['message_bytes'] / 1e6:.0f} MB, "
        rows.append(
            (
                f"{what}{result['size']} ranks, ms",
                spread(times["horovod"]),
                spread(times["hvd_ext"]),
                ratio(result["ratio_vs_horovod"]),
                f"`{result['command']}`",
            )
        )
    small = results["small_tensors"]
    kib = next(row for row in small["sizes"] if row["message_bytes"] == 1024)["time_us"]
    rows.append(
        (
            "one tensor of 1 KiB, us",
            spread(kib["horovod"]),
            spread(kib["planned"]),
            ratio(small["ratio_vs_horovod"]),
            f"`{small['command']}`",
        )
    )
    overlap = results["overlap"]
    exposed = overlap["exposed_ms"]
    rows.append(
        (
            f"exposed after the backward pass, {overlap['message_bytes'] / 1e6:.0f} MB, ms",
            number(exposed["horovod"]),
            number(exposed["hvd_ext"]),
            ratio(1 / overlap["exposed_ratio_vs_horovod"]),
            f"`{overlap['command']}`",
        )
    )
    columns = ("measurement", "Horovod", "hvd_ext", "ratio", "command")
    return (
        f"{table(columns, rows)}\n\n"
        f"Medians, with the middle half in parentheses. {measured_on(small)}."
    )


def peers(results: Results) -> str:
    """The planned allreduce and the best of the peers, by format and size."""
    result = results["peers"]
    by_buffer: dict[tuple[str, int], dict[str, Any]] = {}
    for row in result["sizes"]:
        by_buffer.setdefault((row["dtype"], row["message_bytes"]), {})[row["buffer"]] = row
    rows = []
    for (dtype, message_bytes), of in by_buffer.items():
        arena, caller = of["arena"], of["caller"]
        best = arena.get("best_peer")
        slower = arena.get("ratio_vs_best_peer", 1) < 1 or caller.get("ratio_vs_best_peer", 1) < 1
        if best is None or not (message_bytes in _PEERS_SHOWN or slower):
            continue
        rows.append(
            (
                f"{dtype}, {format_bytes(message_bytes)}",
                f"{number(arena['time_us'][best]['median'])}, {best}",
                spread(arena["time_us"]["hvd_ext"]),
                ratio(arena["ratio_vs_best_peer"]),
                spread(caller["time_us"]["hvd_ext"]),
                ratio(caller["ratio_vs_best_peer"]),
            )
        )
    columns = ("us", "best peer", "in the arena", "speedup", "the caller's buffer", "speedup")
    return f"{table(columns, rows)}\n\n{result['size']} ranks. {origin(result)}"


def collectives(results: Results) -> str:
    """Every collective on one node and between hosts, with the best of its peers."""
    result = results["collectives"]
    rows = [
        (
            f"{case['layout']}, {case['level']}: {case['collective']}",
            format_bytes(case["message_bytes"]) if case["message_bytes"] else "",
            spread(case["time_us"]["hvd_ext"]),
            f"{number(case['time_us'][case['best_peer']]['median'])}, {case['best_peer']}",
            ratio(case["ratio_vs_best_peer"]),
        )
        for case in result["cases"]
    ]
    columns = ("nodes x ranks, level", "message", "hvd_ext, us", "best peer, us", "speedup")
    return f"{table(columns, rows)}\n\nLinks of {result['gbit']:g} Gbit/s. {origin(result)}"


def compared_with_gloo(results: Results) -> str:
    """Collectives of torch.distributed by size, with Gloo's times; every 16th size, for width."""
    result = results["collectives"]
    cases = [case for case in result["cases"] if case["level"] == "torch" and case["message_bytes"]]
    sizes = sorted({case["message_bytes"] for case in cases})[2::2]
    cells: dict[tuple[str, str], dict[int, str]] = {}
    for case in cases:
        own, gloo = (number(case["time_us"][name]["median"]) for name in ("hvd_ext", "gloo"))
        row = cells.setdefault((case["layout"], case["collective"]), {})
        row[case["message_bytes"]] = f"{own} / {gloo}"
    rows = [
        (layout, collective, *(row.get(size, "") for size in sizes))
        for (layout, collective), row in cells.items()
    ]
    columns = ("nodes x ranks", "us, hvd_ext / Gloo", *map(format_bytes, sizes))
    return f"{table(columns, rows)}\n\nLinks of {result['gbit']:g} Gbit/s. {origin(result)}"


def hosts(results: Results) -> str:
    result = results["cluster_exchange"]
    times = result["time_ms"]
    rows = [
        (title, spread(times[name]), ratio(times[name]["median"] / times["hvd_ext"]["median"]))
        for name, title in (
            ("horovod", "Horovod"),
            ("mpi", "the MPI library"),
            ("hvd_ext", "hvd_ext"),
        )
    ]
    share = (
        f"hvd_ext used {100 * result['share_of_wire_limit']:.0f} % of the links' "
        f"{result['gbit']:g} Gbit/s."
    )
    return f"{table(('ms', 'time', 'speedup of hvd_ext'), rows)}\n\n{share} {origin(result)}"


def compression(results: Results) -> str:
    result = results["compression"]
    rows = [
        (
            FORMATS[row["name"]],
            spread(row["time_ms"]),
            ratio(row["ratio_vs_none"]),
            number(row["wire_bytes"] / 1e6),
            f"{row['share_of_link']:.2f}",
        )
        for row in (*result["formats"], *result["peers"])
    ]
    columns = ("format", "ms", "speedup over none", "MB sent by a host", "share of the link")
    return f"{table(columns, rows)}\n\n`auto` chose {result['auto_chose']}. {origin(result)}"


def losses(results: Results) -> str:
    """The loss that each format reaches: mean and range over seeds."""
    models = [results[f"compressed_training_{model}"] for model in ("edsr", "resnet")]
    of_models = [{row["name"]: row["losses"] for row in model["formats"]} for model in models]
    rows = [
        (
            name.replace(", forgetful", " without error feedback"),
            *(
                f"{number(mean(of[name]))} ({number(min(of[name]))} to {number(max(of[name]))})"
                for of in of_models
            ),
        )
        for name in of_models[0]
    ]
    abouts = [f"{model['about']}, {model['steps']} steps" for model in models]
    origins = "\n".join(f"- {origin(model)}" for model in models)
    return f"{table(('format', *abouts), rows)}\n\n{origins}"


def spatial(results: Results) -> str:
    result = results["spatial_scaling"]
    rows = []
    for case in result["cases"]:
        ends = case["efficiency_spread"]
        rows.append(
            (
                f"`{case['name']}`",
                *(number(case["time_s"][way]["median"]) for way in ("alone", "split")),
                f"{case['efficiency']:.2f} ({ends[0]:.2f} to {ends[-1]:.2f})",
                *(f"{case[f'efficiency_{kind}']:.2f}" for kind in ("busy", "alike")),
                *(f"{case[f'peak_memory_ratio{w}']:.2f}" for w in ("", "_with_parameters")),
            )
        )
    columns = ["case", "1 rank, s", "2 ranks, s", "efficiency", "against busy ranks"]
    columns += ["against the same layers", "memory", "with parameters"]
    return f"{table(columns, rows)}\n\n{origin(result)}"


@dataclass(frozen=True)
class Block:
    """A part of a page.

    Attributes:
        needs: names of files in docs/benchmarks, without `.json`.
        make: the Markdown from their contents.
    """

    needs: tuple[str, ...]
    make: Callable[[Results], str]


BLOCKS = {
    "performance": Block(("training_step",), performance),
    "training-speedups": Block(("training_step",), training_speedups),
    "torch-distributed": Block(TORCH_DISTRIBUTED, torch_distributed),
    "memory": Block(("training_step",), memory),
    "training-parts": Block(("training_step",), training_parts),
    "exchanges": Block(
        ("gradient_exchange_np2", "gradient_exchange_np4", "small_tensors", "overlap"), exchanges
    ),
    "peers": Block(("peers",), peers),
    "collectives": Block(("collectives",), collectives),
    "compared-with-gloo": Block(("collectives",), compared_with_gloo),
    "hosts": Block(("cluster_exchange",), hosts),
    "compression": Block(("compression",), compression),
    "losses": Block(("compressed_training_edsr", "compressed_training_resnet"), losses),
    "spatial": Block(("spatial_scaling",), spatial),
    "advice": Block(("advice",), advice),
    "scaling-forecast": Block(("scaling_forecast",), scaling_forecast),
    "simulated-growth": Block(("simulated_growth",), growth),
    "support": Block(("support_matrix",), support),
}
