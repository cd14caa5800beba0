"""`space doctor` looks, says what to do, and leaves everything as it was."""

import json
import os
import re
import socket
import sys
from ipaddress import IPv4Address
from pathlib import Path

from space.cli import doctor_host, doctor_uplink
from space.cli.finding import Level
from space.host import command, netns
from space.layout import Layout
from space.settings import HostSettings

_SPACE = Path(sys.prefix) / "bin" / "space"


async def _doctor(data_dir: Path, port: int = 0) -> tuple[int, dict[str, dict[str, str]]]:
    done = await command.run(
        str(_SPACE), "doctor", "-o", "json", "--data", str(data_dir), env={"SPACE_PORT": str(port)}, check=False
    )
    found = json.loads(done.stdout)
    return done.status, {one["what"]: one for one in found}


async def test_it_finds_what_is_needed_and_makes_nothing(tmp_path: Path) -> None:
    status, found = await _doctor(tmp_path / "data")
    blocked = [one for one in found.values() if one["level"] == "blocker"]
    assert (status, blocked) == (0, [])
    assert {"root", "btrfs", "nftables", "KVM", "qemu-system-x86_64", "disk", "memory", "swap", "port", "SPACE"} <= set(
        found
    )
    assert list(tmp_path.iterdir()) == []


async def test_every_finding_that_is_not_ok_has_a_cure(tmp_path: Path) -> None:
    _, found = await _doctor(tmp_path / "data")
    assert [one["what"] for one in found.values() if (one["level"] == "ok") != (one["cure"] == "")] == []


async def test_a_port_in_use_blocks_with_its_cure(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        status, found = await _doctor(tmp_path / "data", taken.getsockname()[1])
    assert status == 1
    assert found["port"]["level"] == "blocker"
    assert "--port" in found["port"]["cure"]


async def test_versions_are_whole() -> None:
    _, found = await _doctor(Path("/nowhere/data"))
    for program in ("qemu-system-x86_64", "dpkg-deb", "ip"):
        assert re.fullmatch(r"\d+(\.\d+)+", found[program]["found"]), found[program]


async def test_a_full_disk_area_blocks_and_a_full_host_is_hinted_at(tmp_path: Path) -> None:
    """Doctor once looked at the host's disk alone, and called 0.8 GiB there enough."""
    data_dir = tmp_path / "data"
    data_dir.mkdir()
    layout = Layout(data_dir, "doct", 0x7000_0000)
    for folder, size in ((data_dir, "700m"), (layout.disk_area, "400m")):
        folder.mkdir(exist_ok=True)
        await command.run("mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(folder))
        (data_dir / "mem.img").touch()
    try:
        host, disk = doctor_host.room(data_dir, layout)
    finally:
        for folder in (layout.disk_area, data_dir):
            await command.run("umount", str(folder))
    assert (host.level, disk.level) == (Level.HINT, Level.BLOCKER)
    assert "SPACE_MEMORY_GIB" in host.cure
    assert "Delete sandboxes" in disk.cure


async def test_a_data_folder_in_memory_is_hinted_at() -> None:
    _, found = await _doctor(Path("/dev/shm/space-doctor-test"))
    assert found["data folder"]["level"] == "hint"


async def test_a_firewall_in_the_way_out_is_found_with_its_cure() -> None:
    """On a namespace of the test's own, as Docker leaves a host."""
    name = f"doctor-{os.getpid()}"
    await command.run("ip", "netns", "add", name)
    try:
        settings = HostSettings(uplink=name, resolvers=(IPv4Address("192.0.2.53"),))
        clear = {one.what: one for one in await doctor_uplink.findings(settings)}
        assert {one.level for one in clear.values()} == {Level.OK}
        assert clear["name servers"].found == "192.0.2.53"
        rules = "table ip filter { chain FORWARD { type filter hook forward priority filter; policy drop; }\n}\n"
        await command.run("nft", "-f", "-", stdin=rules.encode(), netns=netns.path(name))
        found = {one.what: one for one in await doctor_uplink.findings(settings)}["forwarding"]
        assert (found.level, found.found) == (Level.HINT, "ip filter drops what is forwarded")
        assert "spaceup-*" in found.cure
    finally:
        await netns.delete(name)
    (missing,) = await doctor_uplink.findings(settings)
    assert missing.level is Level.BLOCKER
