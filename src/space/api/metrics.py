"""Figures of the api process for Prometheus."""

import prometheus_client as prometheus

from space.control.plane import Plane
from space.store import sandboxes


class Metrics:
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
        self._workers = prometheus.Gauge("space_workers_connected", "Workers that answer.", registry=self.registry)

    async def text(self, plane: Plane) -> bytes:
        """Return everything in the text format; raises Unavailable where the database does not answer."""
        self._sandboxes.clear()
        for state, count in (await sandboxes.count(plane.db)).items():
            self._sandboxes.labels(state).set(count)
        self._workers.set(plane.workers.connected)
        return prometheus.generate_latest(self.registry)
