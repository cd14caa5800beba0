"""Control groups: one per VM, bounding the memory, processes and CPU share of a VMM that a guest may have taken over.

Version 2 where its controllers are there, else version 1, else none: a host without usable groups still runs VMs, with
a line in the log. The group of a sandbox is `space-<instance>/<sandbox>` below each root that is used.

The instance's group competes with what is beside it. In version 2 that are the host's slices, and it counts as one of
them. In version 1 it is every process that is in no group, our daemons among them: there it counts as much as its
members together, else all VMs of a host would share what one busy process gets.
"""

import asyncio
import contextlib
import dataclasses
import functools
from collections.abc import Iterable
from pathlib import Path

from space.telemetry import logger

_REMOVE_S = 2.0
"""A group can be removed only when its last process has been reaped, which its parent may take a moment for."""


@dataclasses.dataclass(frozen=True, slots=True)
class Limits:
    """What a group may use. `cpu_weight` is relative: 100 is one vCPU's worth (1 to 10000)."""

    memory_bytes: int
    processes: int
    cpu_weight: int


@dataclasses.dataclass(frozen=True, slots=True)
class _Root:
    """A mounted hierarchy and the controllers we use in it."""

    path: Path
    version: int
    controllers: frozenset[str]


_CONTROLLERS = frozenset({"memory", "pids", "cpu"})
_SHARES = "cpu.shares"


@functools.cache
def _roots() -> tuple[_Root, ...]:
    """Return the hierarchies to use: the unified one, or one of version 1 for each controller."""
    unified: list[_Root] = []
    split: list[_Root] = []
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, mount, kind, options, *_ = line.split()
        path = Path(mount)
        if kind == "cgroup2":
            unified.append(_Root(path, 2, _CONTROLLERS & set((path / "cgroup.controllers").read_text().split())))
        elif kind == "cgroup" and _CONTROLLERS & set(options.split(",")):
            split.append(_Root(path, 1, _CONTROLLERS & set(options.split(","))))
    return tuple(root for root in unified if "memory" in root.controllers) or tuple(split)


def _settings(root: _Root, limits: Limits) -> Iterable[tuple[str, str, bool]]:
    """Yield (file, value, whether it must exist) for a group in `root`."""
    if "memory" in root.controllers:
        if root.version == 2:
            yield "memory.max", str(limits.memory_bytes), True
            yield "memory.swap.max", "0", False
        else:
            yield "memory.limit_in_bytes", str(limits.memory_bytes), True
            yield "memory.swappiness", "0", False
    if "pids" in root.controllers:
        yield "pids.max", str(limits.processes), True
    if "cpu" in root.controllers:
        if root.version == 2:
            yield "cpu.weight", str(limits.cpu_weight), True
        else:
            yield _SHARES, str(max(2, limits.cpu_weight * 1024 // 100)), True


def _parent(root: _Root, instance: str) -> Path:
    return root.path / f"space-{instance}"


def _make(root: _Root, instance: str, sandbox: str, limits: Limits) -> None:
    parent = _parent(root, instance)
    parent.mkdir(exist_ok=True)
    if root.version == 2:
        for above in (root.path, parent):
            control = above / "cgroup.subtree_control"
            missing = root.controllers - set(control.read_text().split())
            if missing:
                control.write_text(" ".join(f"+{name}" for name in sorted(missing)))
    group = parent / sandbox
    group.mkdir(exist_ok=True)
    for name, value, required in _settings(root, limits):
        if required or (group / name).exists():
            (group / name).write_text(value)
    _weigh(root, parent)


def _weigh(root: _Root, parent: Path) -> None:
    if root.version != 1 or "cpu" not in root.controllers:
        return
    shares = 0
    for group in parent.glob(f"*/{_SHARES}"):
        with contextlib.suppress(OSError):  # one that is just removed
            shares += int(group.read_text())
    if shares:
        (parent / _SHARES).write_text(str(shares))


def create(instance: str, sandbox: str, limits: Limits) -> None:
    """Make the group of a sandbox, or bring an existing one to these limits. Where it cannot be made, log that."""
    roots = _roots()
    if not roots:
        logger().warning("cgroup_unavailable", sandbox=sandbox, reason="no hierarchy with a memory controller")
    for root in roots:
        try:
            _make(root, instance, sandbox, limits)
        except OSError as error:
            logger().warning("cgroup_unavailable", sandbox=sandbox, root=str(root.path), reason=str(error))


def enter(instance: str, sandbox: str, pid: int) -> None:
    """Move a process into the group of a sandbox, as far as that was made. Its later children follow it."""
    for root in _roots():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            (_parent(root, instance) / sandbox / "cgroup.procs").write_text(str(pid))


def ran_out_of_memory(instance: str, sandbox: str) -> bool:
    """Tell whether the kernel ended a process of the group because of its memory limit."""
    for root in _roots():
        name = "memory.events" if root.version == 2 else "memory.oom_control"
        with contextlib.suppress(FileNotFoundError):
            counts = dict(line.split() for line in (_parent(root, instance) / sandbox / name).read_text().splitlines())
            if counts.get("oom_kill", "0") != "0":
                return True
    return False


def sandboxes(instance: str) -> set[str]:
    """Return the sandboxes that have a group, for the janitor."""
    parents = [_parent(root, instance) for root in _roots()]
    return {group.name for parent in parents if parent.is_dir() for group in parent.iterdir() if group.is_dir()}


async def remove(instance: str, sandbox: str) -> None:
    """Remove the group of a sandbox whose processes have ended, and the instance's when it was the last.

    Nothing happens when there is none; one that stays busy for 2 s is logged and left to the janitor.
    """
    deadline = asyncio.get_running_loop().time() + _REMOVE_S
    for root in _roots():
        group = _parent(root, instance) / sandbox
        while True:
            try:
                group.rmdir()
            except FileNotFoundError:
                break
            except OSError as error:
                if asyncio.get_running_loop().time() > deadline:
                    logger().warning("cgroup_busy", sandbox=sandbox, group=str(group), reason=str(error))
                    break
                await asyncio.sleep(0.01)
            else:
                break
        with contextlib.suppress(OSError):
            group.parent.rmdir()
        with contextlib.suppress(OSError):
            _weigh(root, group.parent)
