"""The gateway process: `python -m space.gateway --settings FILE`. Unprivileged, in the gateway network namespace.

It has unix sockets for the worker and the two proxies, and in the namespace the guests' name server and the relays for
raw TCP and for upstream proxies. What it sends itself (questions to name servers, relayed TCP, OAuth) leaves by the
namespace's uplink, where packet rules for its uid bound it once more.
"""

import argparse
import asyncio
import contextlib
import os
import signal
import ssl
from pathlib import Path

from space import telemetry
from space.gateway import authz, control, dns_server, egress_service, redaction, relay, rotating
from space.gateway import tunnels as tunnel_server
from space.gateway.accesslog import AccessLog, Ending
from space.gateway.audit import Audit
from space.gateway.certs import Certificates
from space.gateway.egress import Egress
from space.gateway.guests import Guests
from space.gateway.inject import Injector
from space.gateway.lookup import Lookup
from space.gateway.muting import Muting
from space.gateway.oauth import Tokens
from space.gateway.orders import Orders
from space.gateway.redaction import Redactions
from space.gateway.relay import Relay
from space.gateway.resolve import Resolver
from space.gateway.slots import SlotMap
from space.gateway.socks import Dialer
from space.gateway.tunnels import Tunnels
from space.host.process import keep_memory_private
from space.model import ranges
from space.settings import GatewaySettings, read_process_settings

_PAIR_ONLY = 0o117
"""Sockets become 0660; their folders are setgid, so the group is that of the one process meant to connect."""


async def _serve(settings: GatewaySettings) -> None:
    layout = settings.layout()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    slots, guests, orders, audit, ending = SlotMap(), Guests(), Orders(), Audit(), Ending()
    resolver = Resolver(settings.resolvers, ranges.refused(settings.never_except))
    trust = ssl.create_default_context(cafile=None if settings.roots is None else str(settings.roots))
    redactions = Redactions()
    dialer = Dialer(resolver, trust)
    tunnels = Tunnels(guests, dialer, audit)
    injector = Injector(Tokens(resolver, trust, guests))
    egress = Egress(guests, resolver, injector, redactions, tunnels, audit)
    lookup = Lookup(guests, orders, audit)
    certificates = Certificates(lookup.wanted)
    raw = Relay(guests, resolver, dialer, audit)
    muting = Muting(audit)
    log = AccessLog(guests, resolver, audit, ending.end, muting.count)
    parts = control.Parts(slots, guests, orders, certificates, egress.asking, raw, tunnels, audit)
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(authz.serving(layout.authz_sock, slots))
        ours = egress_service.serving(layout.decisions_sock, layout.egress_sock, egress, certificates, log)
        await stack.enter_async_context(ours)
        await stack.enter_async_context(relay.serving(raw))
        await stack.enter_async_context(tunnel_server.serving(tunnels))
        await stack.enter_async_context(dns_server.serving(lookup.answer))
        async with asyncio.TaskGroup() as group:
            loops = [
                group.create_task(loop)
                for loop in (ending.run(orders), muting.run(orders), rotating.tell(guests, orders, audit))
            ]
            group.create_task(redaction.serve(layout.needles_sock, redactions, stop))
            group.create_task(control.serve(layout.gateway_control_sock, parts, stop))
            telemetry.logger().info("gateway_started")
            await stop.wait()
            for loop in loops:
                loop.cancel()
    telemetry.logger().info("gateway_stopped")


def main() -> None:
    """Run until SIGTERM."""
    keep_memory_private()
    os.umask(_PAIR_ONLY)
    parser = argparse.ArgumentParser(prog="space.gateway")
    parser.add_argument("--settings", type=Path, required=True)
    settings = read_process_settings(GatewaySettings, parser.parse_args().settings)
    telemetry.configure("gateway", settings.log_level)
    asyncio.run(_serve(settings))
