"""Ways to switch a control off for a while: rules, kernel parameters, routes, modes of files, lines of text.

Each is a context. Text is taken up when the processes in its `daemons` start again, which is for whoever uses it to do:
several changes cost one start.
"""

import contextlib
import dataclasses
from collections.abc import AsyncGenerator, Generator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Protocol

from tests.support import internet_ns
from tests.support.range import Range

from space.host import command, netns
from space.net import gateway_ns, nft, uplink
from space.net.nft import Reach

_REACH = ((internet_ns.RESOLVER,), (internet_ns.NETWORK,))


class Switch(Protocol):
    """A change that takes something away. `code` is the folder of the sources that the range runs from."""

    @property
    def daemons(self) -> tuple[str, ...]:
        """The processes that have to start again to notice."""
        ...

    def off(self, r: Range, code: Path) -> AbstractAsyncContextManager[None]:
        """Apply it for a while."""
        ...


@dataclasses.dataclass(frozen=True)
class Rules:
    """Packet rules of the gateway namespace, or of A's slot: those that contain `without` are left out, `more` come on
    top, as a script for nft.
    """

    without: tuple[str, ...] = ()
    more: str = ""
    slot: bool = False
    daemons: tuple[str, ...] = ()

    @contextlib.asynccontextmanager
    async def off(self, r: Range, _code: Path) -> AsyncGenerator[None]:
        """Load them so, and afterwards as they are."""
        place, ruleset = await self._ruleset(r)
        await nft.load(place, self._changed(ruleset) + self.more)
        try:
            yield
        finally:
            await nft.load(place, ruleset)

    async def _ruleset(self, r: Range) -> tuple[Path, str]:
        if self.slot:
            made = r.slot(r.a)
            return r.slot_path(r.a), "flush ruleset\n" + nft.slot_ruleset(made.gateway_address, made.address)
        own = await uplink.own_addresses(r.net.beyond.host)
        return r.gateway, nft.gateway_ruleset(r.layout, Reach(own, *_REACH))

    def _changed(self, ruleset: str) -> str:
        lines = ruleset.splitlines()
        for text in self.without:
            assert any(text in line for line in lines), f"no rule has {text!r} any more"
        return "\n".join(line for line in lines if not any(text in line for text in self.without)) + "\n"


@dataclasses.dataclass(frozen=True)
class Sysctls:
    """Kernel parameters of A's slot, or of the gateway namespace, by their dotted names."""

    values: tuple[tuple[str, int], ...]
    slot: bool = False
    daemons: tuple[str, ...] = ()

    @contextlib.asynccontextmanager
    async def off(self, r: Range, _code: Path) -> AsyncGenerator[None]:
        """Set them, and afterwards to what they were."""
        place = r.slot_path(r.a) if self.slot else r.gateway
        before = {name: await self._read(place, name) for name, _ in self.values}
        netns.write_sysctls(place, dict(self.values))
        try:
            yield
        finally:
            netns.write_sysctls(place, before)

    async def _read(self, place: Path, name: str) -> int:
        return int((await command.run("sysctl", "--values", name, netns=place)).stdout)


@dataclasses.dataclass(frozen=True)
class Routes:
    """Routes of the gateway namespace that are taken away."""

    gone: tuple[str, ...]
    daemons: tuple[str, ...] = ()

    @contextlib.asynccontextmanager
    async def off(self, r: Range, _code: Path) -> AsyncGenerator[None]:
        """Delete them, and bring the namespace back to what it must be."""
        for route in self.gone:
            await command.run("ip", "-n", r.layout.gateway_netns, "route", "delete", *route.split())
        try:
            yield
        finally:
            await gateway_ns.ensure(r.layout, r.net.beyond.host, *_REACH)


@dataclasses.dataclass(frozen=True)
class Modes:
    """Who may enter the sockets' folders, and connect."""

    folders: int | None = None
    sockets: int | None = None
    daemons: tuple[str, ...] = ()

    @contextlib.asynccontextmanager
    async def off(self, r: Range, _code: Path) -> AsyncGenerator[None]:
        """Set the modes that are given, and afterwards what they were."""
        sockets = list(r.space.run_dir.rglob("*.sock"))
        wish = dict.fromkeys(sockets, self.sockets) | {path.parent: self.folders for path in sockets}
        before = {path: path.stat().st_mode & 0o7777 for path, mode in wish.items() if mode is not None}
        for path, mode in wish.items():
            if mode is not None:
                path.chmod(mode)
        try:
            yield
        finally:
            for path, mode in before.items():
                path.chmod(mode)


@dataclasses.dataclass(frozen=True)
class Text:
    """A replacement in a proxy's configuration (`*.yaml`), or in our code."""

    file: str
    old: str
    new: str
    daemons: tuple[str, ...]

    @contextlib.asynccontextmanager
    async def off(self, r: Range, code: Path) -> AsyncGenerator[None]:
        """Write it, and afterwards what was there."""
        path = r.space.run_dir / "settings" / self.file if self.file.endswith(".yaml") else self.path(code)
        with self.replaced(path):
            yield

    def path(self, code: Path) -> Path:
        """Return where it is among the sources."""
        return code / "src" / "space" / self.file

    @contextlib.contextmanager
    def replaced(self, path: Path) -> Generator[None]:
        """The same with the file at `path`, whose owner and mode stay."""
        good = path.read_text()
        assert self.old in good, f"{self.file} has no {self.old!r} any more: say here how this control is switched off"
        _overwrite(path, good.replace(self.old, self.new))
        try:
            yield
        finally:
            _overwrite(path, good)


def _overwrite(path: Path, text: str) -> None:
    """Change a file in place: owner and mode stay."""
    with path.open("w") as file:
        file.write(text)
