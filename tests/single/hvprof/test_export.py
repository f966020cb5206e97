"""hvprof export: what it writes is what the recording holds, in a form that Prometheus reads."""

from __future__ import annotations

import gzip
import json
import re
import sys
import threading
from collections import defaultdict
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from prometheus_client.parser import text_string_to_metric_families

from hvd_ext.errors import HvdExtError, UsageError
from hvprof import cli
from hvprof.format.counters import read_counters
from hvprof.live.metrics import METRICS
from tests.single.hvprof.test_watch import running
from tests.support.hvprof.made_recordings import put_current, write_job

ROOT = Path(__file__).resolve().parents[3]
DASHBOARD = ROOT / "docs" / "guides" / "grafana" / "hvprof.json"
LABELS = {metric.name + "_total" * (metric.kind == "counter"): metric.labels for metric in METRICS}


def samples(path: Path) -> dict[str, dict[tuple[str, ...], float]]:
    """Values by name and label values, as Prometheus' own library reads them."""
    found: dict[str, dict[tuple[str, ...], float]] = defaultdict(dict)
    for family in text_string_to_metric_families(path.read_text()):
        for sample in family.samples:
            labels = tuple(sample.labels[label] for label in LABELS[sample.name])
            assert labels not in found[sample.name], sample
            found[sample.name][labels] = sample.value
    return found


def export(directory: Path, *arguments: object) -> dict[str, dict[tuple[str, ...], float]]:
    path = directory.parent / "hvprof.prom"
    command = ["export", directory, "--prometheus", path, "--every", 0.01, *arguments]
    assert cli.main(list(map(str, command))) == 0
    return samples(path)


def test_the_numbers_are_those_of_the_ranks_files(tmp_path: Path) -> None:
    directory = running(tmp_path / "run", 3, 40)
    found = export(directory, "--once")
    assert found["hvprof_up"] == {(): 1}
    calls: dict[tuple[str, ...], list[float]] = defaultdict(lambda: [0, 0, 0.0])
    for rank in range(3):
        counters = read_counters(directory / f"rank-{rank:05d}.hvprof")
        assert counters is not None
        assert counters.steps is not None
        (steps,) = [v for k, v in found["hvprof_steps_total"].items() if k[0] == str(rank)]
        assert steps == counters.steps.index == 40
        for one in counters.counts:
            of_kind = calls[one.operation, one.algorithm, one.traffic]
            of_kind[0] += one.calls
            of_kind[1] += one.message_bytes
            of_kind[2] += one.time_s
    assert calls
    for place, name in enumerate(("calls", "bytes", "seconds")):
        sums: dict[tuple[str, ...], float] = defaultdict(float)
        for labels, value in found[f"hvprof_operation_{name}_total"].items():
            sums[labels[:3]] += value
        assert sums == {kind: pytest.approx(values[place]) for kind, values in calls.items()}


def test_parts_of_the_steps_add_up_to_their_time(tmp_path: Path) -> None:
    directory = running(tmp_path / "run", 2, 40)
    found = export(directory, "--once")["hvprof_step_seconds_total"]
    whole_s = 0.0
    for path in directory.glob("rank-*.hvprof"):
        counters = read_counters(path)
        assert counters is not None
        assert counters.steps is not None
        whole_s += counters.steps.time_s
    parts_s = sum(value for labels, value in found.items() if labels[0] != "overlapped")
    assert parts_s == pytest.approx(whole_s)


def test_time_in_the_present_call_is_that_of_each_rank(tmp_path: Path) -> None:
    directory = running(tmp_path / "run", 2, 40)
    put_current(directory, 0)
    waiting = export(directory, "--once")["hvprof_waiting_seconds"]
    of_rank = {labels[0]: value for labels, value in waiting.items()}
    assert 30 <= of_rank["0"] < 60
    assert of_rank["1"] == 0


def test_the_last_writing_says_that_the_job_has_ended(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = tmp_path / "run"
    write_job(directory, 2, 40)
    found = export(directory)
    assert found["hvprof_up"] == {(): 0}
    assert set(found["hvprof_waiting_seconds"].values()) == {0}
    assert sum(v for k, v in found["hvprof_processes"].items() if k[1] == "finalized") == 2
    assert "has ended" in capsys.readouterr().err


def test_series_of_a_large_job_stay_few(tmp_path: Path) -> None:
    found = export(running(tmp_path / "run", 512, 40), "--once")
    # 4 for each rank, and at most 40 for each of the 128 hosts.
    assert sum(map(len, found.values())) < 4 * 512 + 128 * 40


def test_a_file_that_cannot_be_read_leaves_the_last_writing(tmp_path: Path) -> None:
    directory = running(tmp_path / "run", 2, 40)
    export(directory, "--once")
    written = (tmp_path / "hvprof.prom").read_bytes()
    damaged = directory / "rank-00001.hvprof"
    damaged.write_bytes(damaged.read_bytes()[:1000])
    with pytest.raises(UsageError, match="cut off"):
        export(directory, "--once")
    assert (tmp_path / "hvprof.prom").read_bytes() == written


def test_without_the_library_one_line_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(UsageError, match=r"pip install 'hvd-ext\[metrics\]'"):
        cli.main(["export", str(tmp_path), "--prometheus", str(tmp_path / "x.prom")])
    assert not (tmp_path / "x.prom").exists()


@pytest.fixture
def collector() -> Iterator[tuple[str, list[ExportMetricsServiceRequest]]]:
    """The address of an OpenTelemetry collector, and what it was sent."""
    requests: list[ExportMetricsServiceRequest] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            requests.append(ExportMetricsServiceRequest.FromString(body))
            self.send_response(200 if self.path == "/v1/metrics" else 404)
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", requests
        server.shutdown()
        thread.join()


def test_a_collector_gets_the_numbers_of_the_file(
    tmp_path: Path, collector: tuple[str, list[ExportMetricsServiceRequest]]
) -> None:
    address, requests = collector
    directory = running(tmp_path / "run", 3, 40)
    written = export(directory, "--once", "--otlp", f"{address}/v1/metrics")
    (request,) = requests
    (resource,) = request.resource_metrics
    (scope,) = resource.scope_metrics
    of_now = {"hvprof_waiting_seconds", "hvprof_since_step_seconds"}
    sent: dict[str, dict[tuple[str, ...], float]] = {}
    for metric in scope.metrics:
        counts = metric.HasField("sum")
        assert not counts or metric.sum.is_monotonic
        points = (metric.sum if counts else metric.gauge).data_points
        name = metric.name + "_total" * counts
        sent[name] = {
            tuple(
                {a.key: a.value.string_value for a in point.attributes}[n] for n in LABELS[name]
            ): (point.as_double or float(point.as_int))
            for point in points
        }
    assert sent.keys() == {name for name, values in written.items() if values}
    for name, values in sent.items():
        assert values.keys() == written[name].keys(), name
        assert name in of_now or values == pytest.approx(written[name]), name


def test_a_collector_that_is_absent_is_one_line(
    tmp_path: Path, collector: tuple[str, list[ExportMetricsServiceRequest]]
) -> None:
    address, _ = collector
    directory = running(tmp_path / "run", 2, 40)
    with pytest.raises(HvdExtError, match="does not take metrics"):
        cli.main(["export", str(directory), "--once", "--otlp", f"{address}/other"])


def test_something_must_be_asked_for(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--prometheus FILE, --otlp URL"):
        cli.main(["export", str(tmp_path), "--once"])


def test_the_dashboard_asks_for_metrics_and_labels_that_there_are() -> None:
    queries = [
        target["expr"]
        for panel in json.loads(DASHBOARD.read_text())["panels"]
        for target in panel["targets"]
    ]
    assert len(queries) >= len(METRICS) - 4
    for query in queries:
        used = re.findall(r"\bhvprof_\w+", query)
        assert used
        assert set(used) <= LABELS.keys(), query
        labels = {label for name in used for label in ("recording", *LABELS[name])}
        by = re.findall(r"by \((\w+)\)", query)
        assert {*re.findall(r'(\w+)!?="', query), *by} <= labels, query


def test_names_follow_the_conventions() -> None:
    for metric in METRICS:
        assert re.fullmatch(r"hvprof_[a-z_]+", metric.name)
        assert not metric.name.endswith("_total")
        assert metric.help.endswith(".")
        assert "job" not in metric.labels
        assert "instance" not in metric.labels
