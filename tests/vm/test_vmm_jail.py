"""What a VMM that a guest has taken over would find: the jail's facts, read from /proc of a running one.

Both forms of the jail are held to the same list: with a user namespace, and for hosts that forbid those, without.
"""

import stat
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from tests.support.vmm import LAYOUT, MEMORY_MIB, Bench, Machine, machine

from space.host import cgroup, command
from space.host.daemon import User, drop_privileges
from space.vmm.qemu import open_driver


@pytest.fixture(scope="module", params=[True, False], ids=["user-namespace", "no-user-namespace"])
async def jailed(request: pytest.FixtureRequest, bench: Bench) -> AsyncGenerator[Machine]:
    """A running VM in one form of the jail."""
    driver = await open_driver(LAYOUT.instance, LAYOUT.vm_uid(0), "tcg", in_user_namespace=request.param)
    async with machine(bench) as made:
        await made.start(driver)
        await made.initialise()
        yield made


def proc(made: Machine) -> Path:
    """The VMM's folder in /proc."""
    return Path(f"/proc/{made.running.ref.pid}")


def test_every_thread_has_no_privilege_and_a_filter(jailed: Machine) -> None:
    """Own uid and gid, no groups, no capability, none to be had, system calls filtered: each thread."""
    uid = str(jailed.spec.uid)
    threads = list((proc(jailed) / "task").iterdir())
    assert len(threads) > 1
    for thread in threads:
        facts = dict(line.split(":\t", 1) for line in (thread / "status").read_text().splitlines() if ":\t" in line)
        assert facts["Uid"].split() == [uid] * 4
        assert facts["Gid"].split() == [uid] * 4
        assert facts["Groups"].strip() in {"", "65534"}
        assert {facts[name] for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {"0" * 16}
        assert facts["NoNewPrivs"] == "1"
        assert facts["Seccomp"] == "2"


def test_it_is_alone_in_its_namespaces(jailed: Machine) -> None:
    """Nothing of the host's network, mounts, processes, ipc or name."""
    for name in ("net", "mnt", "pid", "ipc", "uts"):
        assert (proc(jailed) / "ns" / name).readlink() != Path(f"/proc/self/ns/{name}").readlink()
    devices = (proc(jailed) / "net/dev").read_text().splitlines()[2:]
    assert [line.split(":")[0].strip() for line in devices] == ["lo"]
    assert (proc(jailed) / "status").read_text().split("NSpid:")[1].split()[:2] == [str(jailed.running.ref.pid), "1"]


def test_its_root_holds_its_own_files_only(jailed: Machine) -> None:
    """The VMM's binary and libraries, its four files, /dev/null; no shell, no /proc, no /etc."""
    root = proc(jailed) / "root"
    assert {path.name for path in root.iterdir()} == {"vm", "usr", "lib", "lib64", "dev"}
    assert {path.name for path in (root / "vm").iterdir()} == {"disk", "mem", "kernel", "initrd"}
    assert {path.name for path in (root / "dev").iterdir()} == {"null"}
    programs = {path.name for path in (root / "usr/bin").iterdir()}
    assert programs in ({"qemu-system-x86_64"}, {"qemu-system-x86_64", "setpriv"})
    found = [path for path in (root / "usr").rglob("*") if path.is_file() and not path.is_symlink()]
    assert all(".so" in path.name or path.suffix == ".bin" or path.name in programs for path in found), found
    assert not [path for path in found if path.stat().st_mode & (stat.S_ISUID | stat.S_ISGID)]


def test_it_can_write_nothing_but_its_disk_and_memory(jailed: Machine) -> None:
    """Every other mount is read-only."""
    writable = set()
    for line in (proc(jailed) / "mountinfo").read_text().splitlines():
        fields = line.split()
        if "rw" in fields[5].split(","):
            writable.add(fields[4])
    assert writable == {"/vm/disk", "/vm/mem", "/dev/null"}


def test_it_holds_only_the_descriptors_it_needs(jailed: Machine) -> None:
    """No descriptor of the worker came along."""
    allowed = {
        "/dev/null",
        "/dev/net/tun",
        "/vm/disk",
        "/vm/mem",
        str(jailed.folder / "vmm.log"),
        "anon_inode:[eventfd]",
        "anon_inode:[signalfd]",
        "anon_inode:[eventpoll]",
    }
    links = [str(path.readlink()) for path in (proc(jailed) / "fd").iterdir()]
    sockets = [link for link in links if link.startswith("socket:")]
    assert len(sockets) <= 2  # the control socket, listening and connected
    assert {link for link in links if link not in sockets} <= allowed
    assert links.count("/dev/net/tun") == 1


def test_its_command_line_and_environment(jailed: Machine) -> None:
    """No network of QEMU's own, no monitor but the inherited socket, no variable of ours."""
    argv = (proc(jailed) / "cmdline").read_text().split("\0")
    after = {
        flag: [argv[i + 1] for i, word in enumerate(argv) if word == flag] for flag in argv if flag.startswith("-")
    }
    assert [value.split(",")[0] for value in after["-netdev"]] == ["tap"]
    assert after["-mon"] == ["chardev=qmp,mode=control"]
    assert "-nodefaults" in after
    assert "-no-user-config" in after
    assert after["-sandbox"] == ["on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny"]
    assert not {"-net", "-nic", "-monitor", "-qmp", "-incoming", "-runas", "-usb", "-vga", "-fsdev"} & after.keys()
    assert {value.split(",")[0] for value in after["-device"]} == {
        "virtio-blk-device",
        "virtio-net-device",
        "virtio-rng-device",
    }
    variables = {word.split("=")[0] for word in (proc(jailed) / "environ").read_text().split("\0") if word}
    assert variables <= {"PWD"}


def test_its_limits(jailed: Machine) -> None:
    """No core dump, no file longer than its disk, and it goes first when the host runs out of memory."""
    limits = (proc(jailed) / "limits").read_text()
    row = {line[:26].strip(): line[26:].split()[1] for line in limits.splitlines()[1:]}
    assert row["Max core file size"] == "0"
    assert int(row["Max file size"]) == max(jailed.spec.disk.stat().st_size, MEMORY_MIB << 20)
    assert int(row["Max open files"]) <= 256
    assert (proc(jailed) / "oom_score_adj").read_text().strip() == "500"


def test_it_is_in_its_control_group(jailed: Machine) -> None:
    """Memory, processes and CPU share are bounded, where the host has control groups."""
    if jailed.spec.sandbox not in cgroup.sandboxes(LAYOUT.instance):
        pytest.skip("this host has no usable control groups")
    group = f"/space-{LAYOUT.instance}/{jailed.spec.sandbox}"
    assert f":{group}" in "\n".join(
        line.replace(line.split(":")[1], "") for line in (proc(jailed) / "cgroup").read_text().splitlines()
    )


async def test_another_vms_user_cannot_touch_its_files(jailed: Machine) -> None:
    """Neither its folder's names, nor disk, memory, log or control socket."""
    stranger = drop_privileges(User(jailed.spec.uid + 1, jailed.spec.uid + 1))
    for path in (jailed.spec.disk, jailed.spec.memory, jailed.folder / "vmm.log"):
        for flag in ("-r", "-w"):
            done = await command.run(*stranger, "test", flag, str(path), check=False)
            assert done.status == 1, path
    assert (await command.run(*stranger, "ls", str(jailed.folder), check=False)).status != 0
    facts = (jailed.folder / "qmp.sock").stat()
    assert (facts.st_uid, stat.S_IMODE(facts.st_mode)) == (0, 0o600)
    # the VMM's own user is as much a stranger to its control socket
    for uid in (jailed.spec.uid, jailed.spec.uid + 1):
        script = "import socket, sys; socket.socket(socket.AF_UNIX).connect(sys.argv[1])"
        prefix = drop_privileges(User(uid, uid))
        done = await command.run(
            *prefix, "/usr/bin/python3", "-c", script, str(jailed.folder / "qmp.sock"), check=False
        )
        assert "PermissionError" in done.stderr


async def test_the_guest_sees_three_devices(jailed: Machine) -> None:
    """Network, disk, entropy (virtio types 1, 2, 4) and no PCI bus."""
    code, output = await jailed.run("cat /sys/bus/virtio/devices/*/device; ls /sys/bus/pci/devices | wc -l")
    assert code == 0
    *types, pci = output.split()
    assert sorted(int(kind, 16) for kind in types) == [1, 2, 4]
    assert pci == "0"
