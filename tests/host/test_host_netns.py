"""One thing done inside a network namespace, from a process that stays outside."""

import secrets
import socket
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from space.host import command, netns


@pytest.fixture
async def name() -> AsyncGenerator[str]:
    made = f"test-{secrets.token_hex(3)}"
    await command.run("ip", "netns", "add", made)
    try:
        yield made
    finally:
        await netns.delete(made)


def _devices() -> set[str]:
    return {name for _, name in socket.if_nameindex()}


async def test_an_action_sees_the_namespace_and_we_do_not(name: str) -> None:
    before = Path("/proc/self/ns/net").readlink()
    inside = netns.inside(netns.path(name), lambda: (_devices(), Path("/proc/thread-self/ns/net").readlink()))
    assert inside[0] == {"lo"}
    assert inside[1] != before
    assert Path("/proc/self/ns/net").readlink() == before


async def test_a_program_runs_inside_without_mounts_of_its_own(name: str) -> None:
    done = await command.run(
        "sh", "-c", "ls /sys/class/net >/dev/null; ip -o link; readlink /proc/self/ns/mnt", netns=netns.path(name)
    )
    assert done.stdout.splitlines()[-1] == str(Path("/proc/self/ns/mnt").readlink())
    assert all(": lo:" in line for line in done.stdout.splitlines()[:-1])


async def test_a_socket_made_inside_stays_inside(name: str) -> None:
    await command.run("ip", "-n", name, "link", "set", "lo", "up")
    outside = socket.create_server(("127.0.0.1", 0))
    with outside, netns.tcp_socket(netns.path(name)) as made:
        made.settimeout(2)
        with pytest.raises(ConnectionRefusedError):
            made.connect(outside.getsockname())


async def test_what_goes_wrong_inside_is_raised_outside(name: str) -> None:
    with pytest.raises(ZeroDivisionError):
        netns.inside(netns.path(name), lambda: 1 // 0)
    with pytest.raises(FileNotFoundError):
        netns.inside(netns.path(name + "x"), lambda: None)


async def test_parameters_are_those_of_the_namespace(name: str) -> None:
    key = Path("/proc/sys/net/ipv4/ip_forward")
    before = key.read_text()
    other = 1 - int(before)
    netns.write_sysctls(netns.path(name), {"net.ipv4.ip_forward": other})
    assert netns.inside(netns.path(name), key.read_text) == f"{other}\n"
    assert key.read_text() == before


async def test_names_and_delete_twice(name: str) -> None:
    assert netns.names(name) == [name]
    await netns.delete(name)
    await netns.delete(name)
    assert netns.names(name) == []
