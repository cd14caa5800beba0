"""What the way out costs: requests each judged, bytes in bulk, and latency, beside other proxies that intercept TLS.

Straight from clients to a server, through SPACE's way out (slots, gateway, egress proxy; no microVMs), and through
squid and mitmproxy doing the same: the client's TLS ended with a minted certificate, each request judged by host,
method and path, TLS to the server verified. Clients, proxies and server share this machine's cores, and all of it
happens in network namespaces of the bench's own. Rounds go from one way to the next, so that a busy moment strikes all.
"""

import argparse
import asyncio
import contextlib
import os
import tempfile
from collections import Counter
from collections.abc import AsyncGenerator
from pathlib import Path

from bench import far, frame, rivals, tools
from bench.figures import Goal, Step, Taken
from bench.plot import Bars, Panels
from bench.results import Outcome, host, publish
from bench.ways import Between, Client, Way, between, through_space

from space.cli.output import say
from space.host import command

DIRECT, SPACE = "direct", "SPACE"
_RATE, _CPU, _BULK, _ONE = "requests at once", "CPU of a request", "bulk", "one at a time"
_UNITS = {_RATE: "requests/s", _CPU: "us", _BULK: "MB/s", _ONE: "ms"}
_GATEWAY = "of it, SPACE's decision"
_CLIENTS, _CONNECTIONS = 16, 2
"""So many sandboxes with so many connections each: a sandbox may send 1,000 requests a second, and is told 429 then."""
_ALONE_PER_S = 500
"""Requests of the one that is alone, by the same limit."""
_WARM_UP_S = 1
_KEPT = 2000
"""Latencies kept of one round, evenly chosen."""
_GOAL_RATE, _GOAL_BULK = 4000, 0.5


class Run:
    """What one run has found so far."""

    def __init__(self, seconds: int, folder: Path) -> None:
        self.taken = Taken()
        self.errors: dict[str, int] = {}
        self.notes: list[str] = []
        self._seconds, self._folder = seconds, folder

    async def round(self, way: Way) -> None:
        """Measure a way once."""
        await self._fetch(way, far.SMALL)  # the first of all has the certificate minted
        before = [_cpu_s(pid) for pid in way.pids]
        many = await self._requests(way, way.clients, f"--clients={_CONNECTIONS}")
        # the warm-up's requests are not counted, but cost as much
        share = self._seconds / (self._seconds + _WARM_UP_S) / len(many) * 1e6
        costs = [(_cpu_s(pid) - was) * share for pid, was in zip(way.pids, before, strict=True)]
        if costs:
            self.taken.note(_name(way.name, _CPU), sum(costs))
        if way.name == SPACE:
            self.taken.note(_GATEWAY, costs[0])
        self.taken.note(_name(way.name, _RATE), len(many) / self._seconds)
        alone = await self._requests(way, way.clients[:1], "--clients=1", f"--rps={_ALONE_PER_S}")
        for taken_us in alone[:: -(-len(alone) // _KEPT) or 1]:
            self.taken.note(_name(way.name, _ONE), taken_us / 1000)
        bulk = await self._fetch(way, far.BIG)
        self.taken.note(_name(way.name, _BULK), bulk)
        say(f"{way.name}: {len(many) / self._seconds:.0f} requests/s, {sum(costs):.0f} us each, {bulk:.0f} MB/s")

    async def _requests(self, way: Way, clients: tuple[Client, ...], *load: str) -> list[int]:
        """Return the microseconds that each request of all clients took, in the order of their ends."""
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(self._load(client, self._folder / f"log{number}", *load))
                for number, client in enumerate(clients)
            ]
        lines = [line.split("\t") for task in tasks for line in task.result().splitlines()]
        for status, count in Counter(line[1] for line in lines).items():
            if status != "200":
                error = f"{way.name}: a request was answered with {status}"
                self.errors[error] = self.errors.get(error, 0) + count
        return [int(line[2]) for line in lines if line[1] == "200"]

    async def _load(self, client: Client, log: Path, *load: str) -> str:
        binary, env = await tools.debian("nghttp2-client", "h2load")
        log.unlink(missing_ok=True)
        await command.run(
            str(binary), "--h1", *load, "--threads=1", "--max-concurrent-streams=1",
            f"--duration={self._seconds}", f"--warm-up-time={_WARM_UP_S}", f"--log-file={log}",
            f"--connect-to={client.address}:443", f"https://{far.NAME}{far.SMALL}",
            netns=client.place, env=env, timeout_s=self._seconds + 60,
        )  # fmt: skip
        return log.read_text()

    async def _fetch(self, way: Way, path: str) -> float:
        """Fetch from the server, verified; return the throughput in MB/s."""
        client = way.clients[0]
        done = await command.run(
            "curl", "--silent", "--show-error", "--output", "/dev/null",
            "--write-out", "%{http_code} %{speed_download}", "--cacert", str(way.ca),
            "--resolve", f"{far.NAME}:443:{client.address}", f"https://{far.NAME}{path}",
            netns=client.place, timeout_s=300,
        )  # fmt: skip
        status, speed = done.stdout.split()
        if status != "200":
            self.errors[f"{way.name}: {path} answered with {status}"] = 1
        return float(speed) / 1e6

    def outcome(self, settings: dict[str, object]) -> Outcome:
        """Return what was found."""
        names = (DIRECT, SPACE, *rivals.RIVALS)
        steps = {
            what: [Step(_name(way, what), None if way == DIRECT else _name(DIRECT, what), unit) for way in names]
            for what, unit in _UNITS.items()
        }
        steps[_CPU].append(Step(_GATEWAY, unit=_UNITS[_CPU]))
        taken = self.taken
        goals = [
            Goal("judged requests/s", taken.median(_name(SPACE, _RATE)), _GOAL_RATE, "at least"),
            Goal("bulk by direct", taken.ratio(_name(SPACE, _BULK), _name(DIRECT, _BULK)), _GOAL_BULK, "at least"),
        ]
        alone = {line.step: line for line in taken.lines(steps[_ONE])}
        base = alone[_name(DIRECT, _ONE)]
        for way in names[1:]:
            if (line := alone.get(_name(way, _ONE))) is not None:
                added = f"p50 {line.p50 - base.p50:.2f} ms, p99 {line.p99 - base.p99:.2f} ms"
                self.notes.append(f"{way} adds to a request that is alone: {added}")
        bars = [Bars(what, lines) for what, found in steps.items() if (lines := taken.lines(found))]
        panels = Panels("The way out", bars)
        every = [step for found in steps.values() for step in found]
        return Outcome("egress", every, taken, goals, panels, self.notes, self.errors, settings)


def _cpu_s(pid: int) -> float:
    """Return the processor time that a process has used (proc_pid_stat(5))."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _name(way: str, what: str) -> str:
    return f"{way}, {what}"


@contextlib.asynccontextmanager
async def _places(folder: Path) -> AsyncGenerator[tuple[Between, Way]]:
    async with (
        far.far(folder) as outside,
        between(outside, _CLIENTS) as middle,
        through_space(outside, _CLIENTS) as ours,
    ):
        yield middle, ours


async def measure(options: argparse.Namespace) -> bool:
    """Measure all ways in turn; returns whether every request was answered."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        run = Run(options.seconds, folder)
        async with _places(folder) as (middle, ours):
            for rival in options.beside or (None,):
                async with contextlib.AsyncExitStack() as stack:
                    ways = [middle.straight(), ours]
                    if rival is not None:
                        ways.append(await stack.enter_async_context(middle.through(rival)))
                    for _ in range(options.rounds):
                        for way in ways:
                            await run.round(way)
    settings = {"clients": _CLIENTS, "connections": _CLIENTS * _CONNECTIONS, "seconds": options.seconds}
    return publish(run.outcome(settings), options.results, host() | await _versions(options.beside))


async def _versions(beside: list[rivals.Rival]) -> dict[str, object]:
    found: dict[str, object] = {"envoy": await tools.envoy_version()}
    for rival in beside:
        found[rival] = await rivals.version(rival)
    return found


def main() -> None:
    """Measure, and publish."""
    parser = frame.parser("egress", __doc__)
    parser.add_argument("--rounds", type=frame.positive, default=3, help="of each way (default: %(default)s)")
    parser.add_argument(
        "--seconds", type=frame.positive, default=5, help="of each measurement of requests (default: %(default)s)"
    )
    parser.add_argument(
        "--beside", nargs="*", choices=rivals.RIVALS, default=list(rivals.RIVALS), metavar="PROXY",
        help="other proxies to measure, of squid and mitmproxy (default: both)",
    )  # fmt: skip
    if os.getuid() != 0:
        parser.error("needs root: it makes network namespaces")
    frame.run(measure(parser.parse_args()))


if __name__ == "__main__":
    main()
