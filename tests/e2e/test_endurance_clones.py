"""Many from one: clones are strangers to each other, a hundred creates at once damage nothing."""

import asyncio
import json

import httpx2
from tests.support.deployment import Deployment, eventually, vms

from space.worker.admission import OVERHEAD_MIB

AT_ONCE = 3
"""Each with a fork now and then: six, as many as there is memory for."""

_IDENTITY = """
import json, os, ssl, sys
out = ssl.MemoryBIO()
context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # the usual one would read all authorities first
tls = context.wrap_bio(ssl.MemoryBIO(), out, server_hostname="a")
try:
    tls.do_handshake()
except ssl.SSLWantReadError:
    pass
read = lambda path: open(path).read().strip()
print(json.dumps({
    "urandom": os.urandom(16).hex(),
    "hello_random": out.read()[11:43].hex(),
    "uuid": read("/proc/sys/kernel/random/uuid"),
    "boot_id": read("/proc/sys/kernel/random/boot_id"),
    "machine_id": read("/etc/machine-id"),
    "hostname": os.uname().nodename,
}))
"""
"""A TLS ClientHello: record header 5 bytes, handshake header 4, version 2, then the client's 32 random bytes."""


async def test_clones_are_strangers(space: Deployment, full: bool) -> None:
    """Some are spares, some cloned for the call, some forks; no two share a number, an id or a name."""
    told: list[dict[str, str]] = []
    clones = 100 if full else 20
    left = iter(range(clones))

    async def ask(sandbox: str) -> None:
        found = json.loads(await space.output(sandbox, f"python3 -ISc '{_IDENTITY}'"))
        assert found["hostname"] == sandbox
        told.append(found)

    async def some() -> None:
        for number in left:
            made = [await space.create()]
            try:
                await ask(made[0])
                if number % 10 == 0:
                    forked = await space.order(made[0], "fork")
                    made.append(forked["results"][0]["sandbox"]["id"])
                    await ask(made[1])
            finally:
                for one in made:
                    await space.delete(one)

    async with asyncio.TaskGroup() as group:
        for _ in range(AT_ONCE):
            group.create_task(some())
    assert len(told) >= clones
    for name in told[0]:
        values = [one[name] for one in told]
        assert all(values)
        assert len(set(values)) == len(values), f"two clones have the same {name}"


MEMORY_MIB = 128
_PROOF = "sha256sum /usr/bin/python3 /usr/bin/perl; cat /sys/fs/ext4/vda/errors_count"
"""What came with the template, and whether the guest's kernel has found its file system damaged."""


async def _frozen_at_this_size(space: Deployment) -> str:
    """Have the template frozen at the small size, so that creates are clones; returns what its disk proves to be."""
    made = await space.create(memory_mib=MEMORY_MIB)
    whole = await space.output(made, _PROOF)
    await space.delete(made)
    folder = space.data / "disk" / "frozen"

    def frozen() -> bool:
        found = folder.glob(f"t-*-1-{MEMORY_MIB}/manifest.json")
        return any(json.loads(path.read_text())["digests"] for path in found)

    await eventually(frozen, within_s=60, what="the template is frozen at this size")
    assert whole.endswith("\n0")
    return whole


async def test_a_hundred_creates_at_once(space: Deployment) -> None:
    """As many as there is memory for run, on whole disks; the others are told at once and leave nothing."""
    size = {"template": "base", "memory_mib": MEMORY_MIB}
    whole = await _frozen_at_this_size(space)
    assert not vms(space.data), "nothing else may run"
    room = int(space.settings["SPACE_MEMORY_GIB"]) * 1024 // (MEMORY_MIB + OVERHEAD_MIB)
    answers: list[httpx2.Response] = []

    async def create() -> None:
        answers.append(await space.http.post("/v1/sandboxes", json=size))

    async with asyncio.TaskGroup() as group:
        for _ in range(100):
            group.create_task(create())
    made = [str(answer.json()["id"]) for answer in answers if answer.status_code == 201]
    try:
        for answer in answers:
            if answer.status_code != 201:
                assert (answer.status_code, answer.json()["code"]) == (503, "no_capacity"), answer.text
                assert int(answer.headers["retry-after"]) > 0
        assert len(made) == room
        first = next(number for number, answer in enumerate(answers) if answer.status_code == 201)
        print(f"{room} run; {first} of the refused were told before the first of them ran")  # noqa: T201
        for one in made:
            assert await space.output(one, _PROOF) == whole
        for one in made[:2]:  # and what a boot, without a check of the file system, makes of such a disk
            await space.output(one, "echo written > /home/user/note")
            await space.order(one, "suspend", memory=False)
            await space.order(one, "restore")
            assert await space.output(one, f"{_PROOF}; cat /home/user/note") == f"{whole}\nwritten"
    finally:
        async with asyncio.TaskGroup() as group:
            for one in made:
                group.create_task(space.delete(one))
    listed = (await space.http.get("/v1/sandboxes", params={"limit": 200})).json()["sandboxes"]
    assert {one["id"] for one in listed}.isdisjoint(made)
    assert not [one for one in listed if one["state"] in ("creating", "failed")]
