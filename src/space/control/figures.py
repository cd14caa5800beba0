"""Figures of the api process for Prometheus."""

from collections import Counter
from collections.abc import Iterable

import prometheus_client as prometheus
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from space.control.plane import Plane
from space.store import sandboxes


class _EgressEvents(Collector):
    """Counts that are kept elsewhere."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def collect(self) -> Iterable[Metric]:
        """Return them."""
        family = CounterMetricFamily(
            "space_egress_events", "What was decided about sandboxes' traffic, and alarms.", labels=("type",)
        )
        for kind, count in self.counts.items():
            family.add_metric([kind], count)
        return [family]


class Figures:
    """A registry of its own, so that two applications in one process do not share figures."""

    def __init__(self) -> None:
        self.registry = prometheus.CollectorRegistry()
        self.requests = prometheus.Histogram(
            "space_api_request_seconds",
            "Time to answer a request.",
            ("method", "route", "status"),
            registry=self.registry,
            buckets=(0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 30, 100),
        )
        self.decisions = prometheus.Counter(
            "space_edge_decisions", "Answers to the edge.", ("status",), registry=self.registry
        )
        self._sandboxes = prometheus.Gauge(
            "space_sandboxes", "Sandboxes that are not deleted.", ("state",), registry=self.registry
        )
        self._egress = _EgressEvents()
        self.registry.register(self._egress)
        self._workers = prometheus.Gauge("space_workers_connected", "Workers that answer.", registry=self.registry)

    async def text(self, plane: Plane) -> bytes:
        """Return everything in the text format; raises Unavailable where the database does not answer."""
        self._sandboxes.clear()
        for state, count in (await sandboxes.count(plane.db)).items():
            self._sandboxes.labels(state).set(count)
        self._workers.set(plane.workers.connected)
        self._egress.counts = plane.egress_counts
        return prometheus.generate_latest(self.registry)
