"""benchmarks.figures.timeline_picture: profiled steps as an SVG, light and dark."""

from __future__ import annotations

import re
import time
from pathlib import Path
from xml.etree import ElementTree

import pytest

import hvprof
from benchmarks.figures import timeline_picture
from benchmarks.harness import BenchmarkError
from hvprof.reporters.page.sections.timeline import COLORS
from testbed.timing import machine
from tests.support.hvprof.made_profiles import write_profiled_job
from tests.support.hvprof.made_recordings import write_job

SVG = "{http://www.w3.org/2000/svg}"


def test_a_picture_has_the_steps_in_two_schemes_and_what_was_run(tmp_path: Path) -> None:
    recording = hvprof.load(write_profiled_job(tmp_path / "run"))
    picture = tmp_path / "out.svg"
    timeline_picture.main([str(recording.directory), "--output", str(picture)])
    root = ElementTree.parse(picture).getroot()
    words = [text.text or "" for text in root.iter(f"{SVG}text")]
    assert {*COLORS} <= {*words}
    said = " ".join(words)
    assert "rank 0, step 11: 80 us" in said
    assert "Timeline: steps 11 to 12 of 2 ranks, by torch.profiler (kernels of GPUs)" in said
    assert " ".join(recording.command) in said
    date = time.strftime("%Y-%m-%d", time.gmtime(recording.start_unix_s))
    assert words[-1] == f"{machine()['cpu']}, {machine()['cores']} cores, {date}"
    # All is within the picture.
    x, y, width, height = map(float, root.attrib["viewBox"].split())
    for mark in (*root.iter(f"{SVG}text"), *root.iter(f"{SVG}rect")):
        assert x <= float(mark.attrib["x"]) <= x + width
        assert y <= float(mark.attrib["y"]) <= y + height
    # Each color has a value in either scheme, and nothing is loaded.
    style = root.findtext(f"{SVG}style") or ""
    light, _, dark = style.partition("prefers-color-scheme: dark")
    used = {mark.attrib["class"] for mark in root.iter(f"{SVG}rect")}
    assert used == {f"f{color}" for color in COLORS.values()}
    for variable in re.findall(r"var\((--\w+)\)", style):
        assert f"{variable}: #" in light
        assert f"{variable}: #" in dark
    assert all(f".{name} {{" in style for name in used)
    assert "url(" not in style


def test_a_recording_without_a_timeline_is_not_drawn(tmp_path: Path) -> None:
    picture = tmp_path / "out.svg"
    with pytest.raises(BenchmarkError, match="record with --gpu STEPS"):
        timeline_picture.main([str(write_job(tmp_path / "run", 2)), "--output", str(picture)])
    assert not picture.exists()
