"""Metrics in Prometheus' text format."""

from __future__ import annotations

from collections.abc import Iterator

from hvd_ext.errors import UsageError
from hvprof.live.metrics import METRICS, Metric
from hvprof.live.snapshot import Snapshot


def check_installed() -> None:
    """Raise a UsageError that says how to install prometheus-client, if it is missing."""
    try:
        import prometheus_client  # noqa: F401
    except ImportError:
        raise UsageError(
            "Prometheus' format needs prometheus-client, which is not installed: "
            "pip install 'hvd-ext[metrics]'"
        ) from None


def as_prometheus(reading: Snapshot, recording: str, longer_than_s: float) -> str:
    """A reading as text, as the node exporter's textfile collector takes it.

    Args:
        reading: reading of a job.
        recording: the name of its folder, a label of every series. A label "job" would be that of
            the exporter.
        longer_than_s: after this time a call counts as blocked.
    """
    from prometheus_client import CollectorRegistry, generate_latest
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
    from prometheus_client.registry import Collector

    families = {"counter": CounterMetricFamily, "gauge": GaugeMetricFamily}

    def family(metric: Metric) -> CounterMetricFamily | GaugeMetricFamily:
        found = families[metric.kind](
            metric.name, metric.help, labels=("recording", *metric.labels)
        )
        for labels, value in metric.read(reading, longer_than_s):
            found.add_metric((recording, *labels), value)
        return found

    class Reading(Collector):
        def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
            return map(family, METRICS)

    registry = CollectorRegistry(auto_describe=False)
    registry.register(Reading())
    return generate_latest(registry).decode()
