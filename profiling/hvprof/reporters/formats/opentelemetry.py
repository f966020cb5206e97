"""Metrics for an OpenTelemetry collector, by OTLP over HTTP."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from hvd_ext.errors import HvdExtError, UsageError
from hvprof.live.metrics import METRICS, Metric
from hvprof.live.snapshot import Snapshot

_TIMEOUT_S = 5
_UNITS = {"seconds": "s", "bytes": "By"}


class Collector:
    """A collector that takes readings of one recording."""

    def __init__(self, url: str, recording: str, longer_than_s: float) -> None:
        """Describe the metrics; nothing is sent yet.

        Args:
            url: URL of the collector's metrics, such as http://localhost:4318/v1/metrics.
            recording: the name of the recording's folder, an attribute of every point.
            longer_than_s: after this time a call counts as blocked.

        Raises:
            UsageError: OpenTelemetry's libraries are not installed.
        """
        try:
            from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
            from opentelemetry.sdk.metrics import MeterProvider
            from opentelemetry.sdk.metrics.export import InMemoryMetricReader
            from opentelemetry.sdk.resources import Resource
        except ImportError:
            raise UsageError(
                "--otlp needs OpenTelemetry's libraries, which are not installed: "
                "pip install 'hvd-ext[metrics]'"
            ) from None
        self._url, self._recording, self._longer_than_s = url, recording, longer_than_s
        self._reading: Snapshot | None = None
        self._exporter = OTLPMetricExporter(endpoint=url, timeout=_TIMEOUT_S)
        self._reader = InMemoryMetricReader()
        self._provider = MeterProvider(
            [self._reader], Resource.create({"service.name": "hvprof"}), shutdown_on_exit=False
        )
        meter = self._provider.get_meter("hvprof")
        for metric in METRICS:
            counts = metric.kind == "counter"
            make = meter.create_observable_counter if counts else meter.create_observable_gauge
            unit = _UNITS.get(metric.name.rpartition("_")[2], "1")
            make(metric.name, [self._observing(metric)], unit, metric.help)

    def send(self, reading: Snapshot) -> None:
        """Send a reading.

        Raises:
            HvdExtError: the collector does not take it.
        """
        from opentelemetry.sdk.metrics.export import MetricExportResult

        self._reading = reading
        found = self._reader.get_metrics_data()
        if found is None or self._exporter.export(found) is not MetricExportResult.SUCCESS:
            raise HvdExtError(
                f"{self._url} does not take metrics: name a collector's, such as "
                "http://localhost:4318/v1/metrics"
            )

    def close(self) -> None:
        """Send nothing more."""
        self._provider.shutdown()
        self._exporter.shutdown()

    def _observing(self, metric: Metric) -> Any:
        from opentelemetry.metrics import CallbackOptions, Observation

        def observe(options: CallbackOptions) -> Iterable[Observation]:
            del options
            if self._reading is not None:
                for labels, value in metric.read(self._reading, self._longer_than_s):
                    named = dict(zip(metric.labels, labels, strict=True))
                    yield Observation(value, {"recording": self._recording, **named})

        return observe
