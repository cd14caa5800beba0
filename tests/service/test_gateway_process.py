"""The gateway process: who may reach its sockets, what it decides, and how it ends."""

import asyncio
import os
import signal
import stat
from collections.abc import AsyncGenerator
from pathlib import Path

import grpc
import pytest
from envoy.service.auth.v3 import external_auth_pb2, external_auth_pb2_grpc
from tests.support import node_world

from space.host import command, daemon
from space.host.daemon import User
from space.host.process import Watched
from space.layout import Layout
from space.model.errors import InvalidArgument, Unavailable
from space.model.ids import SandboxId, new_id
from space.wire.gateway import GatewayClient, SlotEntry
from space.wire.problem import Problem

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="needs root: starts processes of other users")


@pytest.fixture
async def gateway() -> AsyncGenerator[tuple[Layout, Watched]]:
    """A running gateway that has been told nothing."""
    with node_world.instance() as layout:
        async with node_world.slots(layout, 0), node_world.gateway(layout) as process:
            yield layout, process


async def _check(layout: Layout, sandbox: str, method: str, path: str) -> external_auth_pb2.CheckResponse:
    request = external_auth_pb2.CheckRequest()
    http = request.attributes.request.http
    http.method, http.path = method, path
    http.headers["x-space-sandbox"] = sandbox
    async with grpc.aio.insecure_channel(f"unix:{layout.authz_sock}") as channel:
        return await external_auth_pb2_grpc.AuthorizationStub(channel).Check(request, timeout=5)


async def test_it_knows_the_slots_it_was_told(gateway: tuple[Layout, Watched]) -> None:
    layout, _ = gateway
    one, two = SandboxId(new_id()), SandboxId(new_id())
    client = GatewayClient(layout.gateway_control_sock)
    try:
        await client.put_slot(one, SlotEntry.model_validate({"address": "100.64.0.3"}))
        answer = await _check(layout, one, "POST", "/v1/commands")
        assert answer.dynamic_metadata.fields["dst"].string_value == "100.64.0.3:49983"
        assert not answer.ok_response.headers
        await client.put_slots({two: SlotEntry.model_validate({"address": "100.64.0.5"})})
        assert (await _check(layout, one, "POST", "/v1/commands")).denied_response.status.code == 503
        assert (await _check(layout, two, "GET", "/v1/health")).HasField("ok_response")
        await client.delete_slot(two)
        await client.delete_slot(two)
        assert (await _check(layout, two, "GET", "/v1/health")).denied_response.status.code == 503
    finally:
        await client.close()


async def test_a_refusal_is_a_problem_with_a_code(gateway: tuple[Layout, Watched]) -> None:
    layout, _ = gateway
    unknown = (await _check(layout, new_id(), "GET", "/v1/commands")).denied_response
    assert Problem.model_validate_json(unknown.body).code == "unavailable"
    headers = {option.header.key: option.header.value for option in unknown.headers}
    assert headers == {"content-type": "application/problem+json", "retry-after": "1"}
    outside = (await _check(layout, new_id(), "POST", "/init")).denied_response
    assert (outside.status.code, Problem.model_validate_json(outside.body).code) == (404, "not_found")


async def test_the_control_api_refuses_what_is_no_id_or_address(gateway: tuple[Layout, Watched]) -> None:
    layout, _ = gateway
    client = GatewayClient(layout.gateway_control_sock)
    try:
        with pytest.raises(InvalidArgument):
            await client.put_slots({SandboxId("../x"): SlotEntry.model_validate({"address": "100.64.0.3"})})
        with pytest.raises(ValueError, match="address"):
            SlotEntry.model_validate({"address": "localhost"})
    finally:
        await client.close()


async def test_each_socket_is_for_its_one_partner(gateway: tuple[Layout, Watched]) -> None:
    """EGRESS C3: any local uid that could ask would get credentials and keys of certificates."""
    layout, _ = gateway
    ingress = User(layout.ingress_uid, layout.ingress_uid, (layout.ingress_gateway_gid,))
    egress = User(layout.egress_uid, layout.egress_uid, (layout.egress_gateway_gid, layout.egress_redactor_gid))
    redactor = User(layout.redactor_uid, layout.redactor_uid, (layout.redactor_gateway_gid,))
    partners = {
        layout.authz_sock: ingress,
        layout.decisions_sock: egress,
        layout.egress_sock: egress,
        layout.needles_sock: redactor,
    }
    for path, partner in partners.items():
        assert (stat.S_IMODE(path.stat().st_mode), path.stat().st_gid) == (0o660, partner.groups[0])
    assert stat.S_IMODE(layout.gateway_control_sock.stat().st_mode) == 0o600

    async def may(user: User, path: os.PathLike[str]) -> bool:
        source = f"import socket; socket.socket(socket.AF_UNIX).connect({str(path)!r})"
        argv = (*daemon.drop_privileges(user), "/usr/bin/python3", "-c", source)
        return (await command.run(*argv, check=False)).status == 0

    others = [User(uid, uid, (layout.edge_ingress_gid, layout.edge_api_gid)) for uid in (layout.api_uid, 12345)]
    for path in (*partners, layout.gateway_control_sock):
        for user in (*partners.values(), *others):
            assert await may(user, path) == (partners.get(path) == user), (path, user)


async def test_it_holds_no_privilege_and_its_memory_is_closed(gateway: tuple[Layout, Watched]) -> None:
    layout, process = gateway
    status = (await command.run("cat", f"/proc/{process.ref.pid}/status")).stdout
    facts = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    assert facts["Uid"].split() == [str(layout.gateway_uid)] * 4
    assert int(facts["CapEff"], 16) == int(facts["CapBnd"], 16) == 0
    assert facts["NoNewPrivs"] == "1"
    # not dumpable: its /proc files belong to root, so another process of its uid cannot read its memory
    assert Path(f"/proc/{process.ref.pid}/mem").stat().st_uid == 0
    limits = (await command.run("cat", f"/proc/{process.ref.pid}/limits")).stdout
    assert any(line.split()[:6] == ["Max", "core", "file", "size", "0", "0"] for line in limits.splitlines())


async def _beats_until_gone(layout: Layout, process: Watched, number: signal.Signals) -> int:
    """Send a signal at the second heartbeat; return how many came before the watch said that the gateway is gone."""
    client, beats = GatewayClient(layout.gateway_control_sock), 0
    try:
        async for _ in client.watch():
            beats += 1
            if beats == 2:
                process.send(number)
    except Unavailable:
        return beats
    finally:
        await client.close()
    raise AssertionError("the watch ended without a word")


async def test_the_watch_beats_and_its_end_is_news(gateway: tuple[Layout, Watched]) -> None:
    layout, process = gateway
    assert await _beats_until_gone(layout, process, signal.SIGKILL) == 2


async def test_it_ends_soon_after_sigterm_with_streams_open(gateway: tuple[Layout, Watched]) -> None:
    layout, process = gateway

    async def read_events() -> None:
        client = GatewayClient(layout.gateway_control_sock)
        try:
            with pytest.raises(Unavailable):
                _ = [event async for event in client.events()]
        finally:
            await client.close()

    async with asyncio.TaskGroup() as group:
        group.create_task(read_events())
        assert await _beats_until_gone(layout, process, signal.SIGTERM) >= 2
        assert await process.wait() == 0
    assert "Traceback" not in (layout.data_dir / "gateway.log").read_text()


async def test_it_starts_over_the_sockets_of_a_killed_one(gateway: tuple[Layout, Watched]) -> None:
    layout, process = gateway
    process.send(signal.SIGKILL)
    await process.wait()
    assert layout.authz_sock.exists()
    async with node_world.gateway(layout):
        answer = await _check(layout, new_id(), "GET", "/v1/commands")
        assert answer.denied_response.status.code == 503
