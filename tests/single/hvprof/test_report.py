"""What a report says: every form of it, its advice, and hundreds of ranks."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

import hvprof
from hvd_ext.errors import UsageError
from hvprof.analysis.analysis import Analysis
from hvprof.analysis.waiting.wait_split import split
from hvprof.cli import main
from hvprof.format.writer import write_rank
from hvprof.reporters.formats.json_csv import as_json
from hvprof.reporters.page.svg import Axis, Curve, Series, bars, columns, curves, heat, intervals
from hvprof.reporters.text import scaled_seconds
from tests.support.hvprof.made_recordings import write_job
from tests.support.launch.launching import ROOT, rank_environment


def test_the_forms_agree(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_job(tmp_path / "run", 4)
    assert main(["report", str(tmp_path / "run"), "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert main(["report", str(tmp_path / "run"), "--csv"]) == 0
    table = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    kinds = ("data", "control", "transport", "tuning")
    assert len(table) == sum(len(data[kind]) for kind in kinds)
    rows = [(kind, row) for kind in kinds for row in data[kind]]
    for line, (kind, row) in zip(table, rows, strict=True):
        assert line["traffic"] == kind
        for key, value in row.items():
            if key != "blocks_s":
                assert line[key] == ("" if value is None else str(value))
    large = next(row for row in data["data"] if row["message_size"] == "32-64 MB")
    assert large["calls"] == 4 * 320
    assert large["message_bytes"] == 4 * 320 * 50_000_000
    assert sum(large["blocks_s"]) == pytest.approx(large["time_s"], rel=1e-6)
    assert large["p50_s"] == pytest.approx(large["avg_s"], rel=0.15)
    assert data["free_speedup"]["speedup"] == pytest.approx(1.37, abs=0.05)
    assert data["wait"]["source"] == "estimate"
    assert data["advice"][0]["command"]
    assert data["steps"]["overlap_percent"] == pytest.approx(40, abs=2)
    assert {len(rank["cells"]) for rank in data["ranks"]} == {9}
    assert main(["report", str(tmp_path / "run")]) == 0
    text = capsys.readouterr().out
    assert "registration cache: 93.0 % of 4000" in text
    assert re.search(r"(39|40|41) % of the communication is hidden", text)
    assert "Settings to try next" in text


def test_a_formula_stays_text_in_a_spreadsheet(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_job(tmp_path / "run", 1, name="=HYPERLINK(1)")
    main(["report", str(tmp_path / "run"), "--csv"])
    assert "'=HYPERLINK(1)" in capsys.readouterr().out


def test_advice_is_bounded_and_can_be_typed(tmp_path: Path) -> None:
    recording = hvprof.load(write_job(tmp_path / "run", 8, late_rank=3))
    found = Analysis(recording).advice
    titles = [advice.title for advice in found]
    assert any(title.startswith("Find what delays rank 3 on node000") for title in titles)
    assert any("Hide communication" in title for title in titles)
    steps = recording.all_steps
    assert steps is not None
    for advice in found:
        assert advice.evidence
        assert advice.setting
        assert advice.most_s is None or 0 < advice.most_s <= steps.exposed_s * 1.001
        for line in advice.command.splitlines():
            assert line.split()[0] in ("hvprof", "horovodrun")
            assert subprocess.run(["bash", "-n", "-c", line], check=False).returncode == 0
    commands = "\n".join(advice.command for advice in found)
    assert "horovodrun -np 4 python -m hvd_ext train.py" in commands
    assert "env HOROVOD_CYCLE_TIME=5 horovodrun" in commands


def test_even_ranks_get_no_advice_on_a_straggler(tmp_path: Path) -> None:
    recording = hvprof.load(write_job(tmp_path / "run", 8, noise=0.001))
    found = Analysis(recording).advice
    assert not any("Find what delays" in advice.title for advice in found)


def test_the_late_rank_is_found(tmp_path: Path) -> None:
    recording = hvprof.load(write_job(tmp_path / "run", 8, late_rank=3, noise=0.001))
    found = split(recording, None)
    assert found is not None
    assert found.source == "estimate"
    assert found.waited_for[0][0] == 3
    # 7 of 8 ranks wait 4 ms in each of 10 calls of 320 steps.
    assert found.waited_for[0][1] == pytest.approx(7 / 8 * 0.004 * 10 * 320, rel=0.05)
    assert found.wait_s == pytest.approx(7 / 8 * 0.004 * 10 * 320, rel=0.05)


# What 512 ranks may cost; the figures are said by `pytest -s`.
MANY = """
import sys, time
begun = time.monotonic()
from hvprof.cli import main
main(["report", sys.argv[1], "--html", sys.argv[2]])
taken_s = time.monotonic() - begun
# Not ru_maxrss, which a process that was forked has from its parent.
status = open("/proc/self/status").read()
print("RESULT", taken_s, int(status.split("VmHWM:")[1].split()[0]) / 1024)
"""


@pytest.mark.long
def test_512_ranks_take_little_memory(tmp_path: Path) -> None:
    write_job(tmp_path / "run", 512)
    done = subprocess.run(
        [sys.executable, "-c", MANY, str(tmp_path / "run"), str(tmp_path / "a.html")],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=rank_environment({}),
        check=True,
    )
    taken_s, peak_mib = map(float, done.stdout.split("RESULT")[1].split())
    print(f"512 ranks: {taken_s:.1f} s, {peak_mib:.0f} MiB")
    assert peak_mib < 500
    assert (tmp_path / "a.html").stat().st_size < 8e6


def test_a_rank_that_speaks_of_a_million_is_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_job(tmp_path / "run", 2)
    for rank in (0, 1):
        (tmp_path / "run" / f"rank-{rank:05d}.hvprof").unlink()
    made = hvprof.load(write_job(tmp_path / "other", 1)).ranks[0]
    write_rank(tmp_path / "run", dataclasses.replace(made, size=1_000_000))
    main(["report", str(tmp_path / "run"), "--html", str(tmp_path / "a.html")])
    assert "no recording of ranks 1, 2, 3," in (tmp_path / "a.html").read_text()
    main(["report", str(tmp_path / "run")])
    assert "1 of 1000000 ranks" in capsys.readouterr().out


def test_the_page_has_all_but_histograms(tmp_path: Path) -> None:
    recording = hvprof.load(write_job(tmp_path / "run", 2))
    short = as_json(Analysis(recording), full=False)
    assert "histogram" in as_json(Analysis(recording))["ranks"][0]["cells"][0]
    assert "histogram" not in short["ranks"][0]["cells"][0]
    assert short["data"] == as_json(Analysis(recording))["data"]


@pytest.mark.parametrize("command", [["report", "--html"], ["report", "--trace"]])
def test_a_file_that_cannot_be_written_is_told_before_the_work(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # The recording does not exist either: that would be found later.
    with pytest.raises(SystemExit) as left:
        main([*command, str(tmp_path / "absent" / "x"), str(tmp_path / "run")])
    assert left.value.code == 2
    assert "does not exist; make it first" in capsys.readouterr().err


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    write_job(tmp_path / "run", 1)
    absent = str(tmp_path / "absent" / "x.html")
    with pytest.raises(UsageError, match="cannot read"):
        main(["report", str(tmp_path / "run"), "--layers", absent])
    (tmp_path / "layers.json").write_text('{"layers_version": 1}')
    with pytest.raises(UsageError, match="is not a table of layers"):
        main(["report", str(tmp_path / "run"), "--layers", str(tmp_path / "layers.json")])
    with pytest.raises(UsageError, match="trace"):
        main(["report", str(tmp_path / "run"), "--trace", str(tmp_path / "t.json")])


def test_a_pipe_is_written_to(tmp_path: Path) -> None:
    write_job(tmp_path / "run", 1)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = subprocess.Popen(["timeout", "20", "cat", pipe], stdout=subprocess.PIPE, text=True)
    main(["report", str(tmp_path / "run"), "--html", str(pipe)])
    assert pipe.is_fifo()
    assert reader.communicate()[0].rstrip().endswith("</html>")


def test_a_link_stays_one(tmp_path: Path) -> None:
    write_job(tmp_path / "run", 1)
    (tmp_path / "pages").mkdir()
    link = tmp_path / "a.html"
    link.symlink_to("pages/1.html")
    for _ in range(2):
        main(["report", str(tmp_path / "run"), "--html", str(link)])
        assert link.is_symlink()
        assert [page.name for page in (tmp_path / "pages").iterdir()] == ["1.html"]


def test_names_that_are_no_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = str(write_job(tmp_path / "caf\udce9" / "run\udce9", 2))
    page, labels = str(tmp_path / "a.html"), ["--labels", "a\udce9", "b"]
    main(["report", run, "--html", page])
    main(["compare", run, run, *labels, "--html", page])
    main(["compare", run, run, *labels])
    capsys.readouterr().out.encode()


def test_no_figure_is_cut_short(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["report", str(write_job(tmp_path / "run", 2, name="a" * 47))])
    out = capsys.readouterr().out
    assert f"{'a' * 47}  <1 KB" in out or f"{'a' * 47}  1-128 KB" in out
    assert "busbw" in out
    assert "…" not in out


def test_a_recording_without_steps_or_collectives(tmp_path: Path) -> None:
    recording = hvprof.load(write_job(tmp_path / "run", 2))
    (tmp_path / "bare").mkdir()
    for rank in recording.ranks:
        bare = dataclasses.replace(
            rank, cells=(), regions=(), steps=(), step_count=0, all_steps=None,
            registration_cache=None,
        )  # fmt: skip
        write_rank(tmp_path / "bare", bare)
    main(["report", str(tmp_path / "bare"), "--html", str(tmp_path / "a.html")])
    page = (tmp_path / "a.html").read_text()
    assert "not exposed" in page
    main(["report", str(tmp_path / "bare")])


def form(value: float) -> str:
    return f"{value:g}<&"


@pytest.mark.parametrize("values", [[0.0], [1e-9, 1e9], [5.0] * 40, []])
def test_charts_take_any_figures(values: list[float]) -> None:
    names = [f"<{place}>" for place in range(len(values))]
    points = [(value, value) for value in values]
    drawn = [
        bars("<x>", names, [Series("<a>", values), Series("b", values)], form),
        columns("<x>", names, [Series("<a>", values)], Axis("<y>", form), "<below>"),
        curves("<x>", [Curve("<c>", points)], Axis("<x>", form), Axis("<y>", form)),
        curves("<x>", [Curve("<c>", points)], Axis("<x>", form, base=2), Axis("y", form, base=10)),
        heat("<x>", names, names, [values] * len(values), scaled_seconds, "<below>"),
        intervals("<x>", [(name, 3.0, -1e9, 99.0, 1) for name in names], form),
    ]
    for picture in drawn:
        ElementTree.fromstring(picture)
        assert "nan" not in picture


def test_no_name_steers_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    escape = "\x1b[2J\x1b]0;x\x07[bold]"
    for side in ("a", "b"):
        directory = tmp_path / f"{escape}{side}"
        write_job(directory, 2, host=escape, command=("run", escape), name="allreduce")
    sides = [str(tmp_path / f"{escape}{side}") for side in ("a", "b")]
    for command in (["report", sides[0]], ["compare", *sides], ["check", *sides]):
        limit = ["--max-regression", "5"] if command[0] == "check" else []
        main([*command, *limit])
        out = capsys.readouterr().out
        assert "\x1b" not in out
        assert "\x07" not in out
        assert command[0] != "report" or "[bold]" in out


def test_a_page_groups_the_cells_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def counted(recording: hvprof.Recording, traffic: str) -> list[hvprof.Row]:
        asked.append(traffic)
        return hvprof.rows(recording, traffic)

    monkeypatch.setattr("hvprof.analysis.findings.rows", counted)
    page = tmp_path / "a.html"
    main(["report", str(write_job(tmp_path / "run", 2)), "--html", str(page), "--json"])
    assert page.exists()
    assert sorted(asked) == ["control", "data", "transport", "tuning"]


@pytest.mark.parametrize(("sent", "asked"), [(1.0, True), (0.254, False)])
def test_bytes_between_hosts_and_the_advice_to_compress(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], sent: float, asked: bool
) -> None:
    run = write_job(tmp_path / "run", 8)  # on two hosts
    reduced = 0
    for rank in hvprof.load(run).ranks:
        own = [cell for cell in rank.cells if cell.operation == "allreduce"]
        ours = [
            dataclasses.replace(c, algorithm="hierarchical") for c in own if c.traffic == "data"
        ]
        reduced = sum(cell.message_bytes for cell in ours)
        # A quarter of what a rank of four has reduced, over and back.
        travels = dataclasses.replace(
            ours[0], operation="isend", traffic="transport", message_bytes=int(sent * reduced / 4)
        )
        write_rank(run, dataclasses.replace(rank, cells=(*ours, travels)))
    found = Analysis(hvprof.load(run))
    assert found.between_hosts is not None
    assert found.between_hosts.tensor_bytes == 2 * reduced  # of two hosts
    assert found.between_hosts.ratio == pytest.approx(sent, rel=1e-3)
    advice = [one for one in found.advice if "HVD_EXT_COMPRESSION" in one.setting]
    assert bool(advice) is asked
    main(["report", str(run), "--html", str(tmp_path / "a.html")])
    main(["report", str(run)])
    for text in (capsys.readouterr().out, (tmp_path / "a.html").read_text()):
        assert f"({sent:.2f} x)" in text


def test_one_host_sends_nothing_between_hosts(tmp_path: Path) -> None:
    assert Analysis(hvprof.load(write_job(tmp_path / "run", 4))).between_hosts is None
