"""What else rules can say: budgets, asking a person, observing; and what a crash of the proxy gives away."""

import asyncio
import os
import signal
from collections.abc import AsyncGenerator

import pytest
from tests.support import egress_world, node_world
from tests.support.egress_world import CANARY, World

from space.model.errors import NotFound
from space.wire.gateway import AskAnswer

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="needs root: makes network namespaces")


@pytest.fixture(scope="module")
async def world() -> AsyncGenerator[World]:
    """All of it, once."""
    async with egress_world.world() as made:
        yield made


async def test_a_rules_requests_in_a_minute_are_counted(world: World) -> None:
    rule = {"host": "allowed.test", "limits": {"requests_per_minute": 3}}
    await world.allow(world.one, {"allow": [rule, {"host": "evil.test"}]})
    out = await world.run(
        world.one,
        "s = connect('allowed.test'); e = connect('evil.test')\n"
        "show([fetch('allowed.test', on=s) for _ in range(5)] + [fetch('evil.test', on=e)])",
    )
    assert [answer["status"] for answer in out] == [200, 200, 200, 429, 429, 200]
    assert out[3]["json"]["code"] == "budget_spent"
    assert int(out[3]["headers"]["retry-after"]) > 0
    await world.allow(world.one, {"allow": [rule]})  # a new policy begins anew
    assert (await world.fetch(world.one, "allowed.test"))["status"] == 200


async def test_a_download_over_its_rules_bytes_ends(world: World) -> None:
    """The proxy tells each second how much has passed; the worker ends the connection, and the next is refused."""
    rule = {"host": "allowed.test", "limits": {"download_bytes": 2_000}}
    await world.allow(world.one, {"allow": [rule]})
    out = await world.run(
        world.one,
        """
s = connect("allowed.test")
s.sendall(b"GET /slow HTTP/1.1\\r\\nHost: allowed.test\\r\\n\\r\\n")
s.settimeout(20)
try:
    while s.recv(4096): pass
    end = "end"
except OSError as error: end = type(error).__name__
show([end, fetch("allowed.test")])
""",
    )
    assert out[0] in {"end", "ConnectionResetError"}
    assert (out[1]["status"], out[1]["json"]["code"]) == (429, "budget_spent")


async def test_a_person_may_be_asked(world: World) -> None:
    """EGRESS M8: the request waits; a yes lets this one through, a no refuses it, silence does after its time."""
    await world.allow(world.one, {"allow": [{"host": "evil.test"}], "ask": {"timeout_s": 30}})
    generation = world.generations[world.one.sandbox]
    for allow, status in ((True, 200), (False, 403)):
        path = f"/asked/{allow}"
        async with asyncio.timeout(30), asyncio.TaskGroup() as group:
            request = group.create_task(world.fetch(world.one, "allowed.test", path))
            ask = await world.events(type="ask", sandbox=world.one.sandbox, path=path, generation=generation)
            assert not request.done()
            await world.client.answer_ask(world.one.sandbox, ask.seq, AskAnswer(allow=allow))
        assert request.result()["status"] == status
        verdict = await world.events(type="verdict", sandbox=world.one.sandbox, path=path)
        assert (verdict.allowed, verdict.of) == (allow, ask.seq)
        with pytest.raises(NotFound):
            await world.client.answer_ask(world.one.sandbox, ask.seq, AskAnswer(allow=True))
    await world.allow(world.one, {"ask": {"timeout_s": 1}})
    assert (await world.fetch(world.one, "allowed.test"))["status"] == 403


async def test_observing_lets_through_and_says_so(world: World) -> None:
    await world.allow(world.one, {"observe": True})
    assert (await world.fetch(world.one, "allowed.test", "/learned"))["status"] == 200
    event = await world.events(type="verdict", sandbox=world.one.sandbox, path="/learned")
    assert (event.allowed, event.observed, event.rule) == (True, True, None)


async def test_what_the_proxy_refuses_by_itself_is_an_event_too(world: World) -> None:
    await world.allow(world.one, {"allow": [{"host": "allowed.test"}]})
    await world.run(
        world.one,
        "s = connect('allowed.test'); s.sendall(b'GET /x HTTP/1.1\\r\\nHost: allowed.test\\r\\n"
        "Content-Length: 1\\r\\nTransfer-Encoding: chunked\\r\\n\\r\\n'); show(s.recv(100).decode())",
    )
    event = await world.events(type="refused", sandbox=world.one.sandbox)
    assert event.status == 400


async def test_a_crash_of_the_proxy_gives_no_credential_away(world: World) -> None:
    """EGRESS H5: Envoy prints the headers of the request at hand when it crashes; nobody keeps that output."""
    await world.give(world.one, KEY=CANARY)
    await world.allow(world.one, {"allow": [{"host": "bound.test", "headers": {"x-api-key": "${secrets.KEY}"}}]})
    lines = """
s = connect("bound.test")
s.sendall(b"GET /slow HTTP/1.1\\r\\nHost: bound.test\\r\\n\\r\\n")
print(len(s.recv(100)))
try:
    while s.recv(4096): pass
    print("end")
except OSError as e: print(type(e).__name__)
"""
    async with world.running(world.one, lines) as stream:
        async with asyncio.timeout(node_world.DEADLINE_S):
            assert int(await stream.readline()) > 0
            world.proxy.send(signal.SIGSEGV)
            await world.proxy.wait()
            assert not (await stream.readline()).strip().isdigit()
    for file in world.layout.data_dir.glob("*.log"):
        assert CANARY not in file.read_text() or file == world.log, file
    assert not list(world.layout.data_dir.glob("core*"))
    before = len(world.seen())
    assert "error" in await world.fetch(world.one, "bound.test")
    assert len(world.seen()) == before
    async with node_world.egress_proxy(world.layout, world.roots_file):
        assert (await world.fetch(world.one, "bound.test"))["status"] == 200


async def test_a_redactor_that_is_gone_holds_back_bound_answers_only(world: World) -> None:
    """Case P-07: an answer that cannot be searched does not reach the guest."""
    await world.give(world.two, KEY=CANARY)
    await world.allow(
        world.two,
        {"allow": [{"host": "bound.test", "headers": {"x-api-key": "${secrets.KEY}"}}, {"host": "allowed.test"}]},
    )
    async with node_world.egress_proxy(world.layout, world.roots_file):
        assert (await world.fetch(world.two, "bound.test"))["status"] == 200
        world.redactor.send(signal.SIGKILL)
        await world.redactor.wait()
        answer = await world.fetch(world.two, "bound.test", "/reflect?header=x-api-key")
        assert (answer["status"], answer["json"]["code"]) == (503, "unavailable")
        assert CANARY not in str(answer)
        assert (await world.fetch(world.two, "allowed.test"))["status"] == 200
