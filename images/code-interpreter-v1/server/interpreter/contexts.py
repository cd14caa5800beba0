"""The contexts there are: one by default for each language, and those that clients make."""

import asyncio
import uuid
from collections.abc import Callable
from pathlib import Path

from interpreter.context import Context
from interpreter.kernel import Kernel

HOME = "/home/user"
ALIASES = {
    "python": "python", "python3": "python", "py": "python",
    "javascript": "javascript", "js": "javascript",
    "typescript": "typescript", "ts": "typescript",
    "bash": "bash", "sh": "bash",
}  # fmt: skip
"""The names of the languages there are; anything else is refused."""

_FROM_THE_START = ("python", "javascript")
"""Whose default contexts are listed before anybody used them."""

Maker = Callable[[str, str], Kernel]
"""Gives a fresh kernel for a language and a folder."""


class Refused(Exception):
    """What a client asked for cannot be; `status` is HTTP's."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


class Contexts:
    """All contexts of this machine. Kernels start with the first run of their context."""

    def __init__(self, make: Maker, home: str = HOME) -> None:
        self._make, self._home = make, home
        self._all: dict[str, Context] = {}
        self._default: dict[str, str] = {}
        for language in _FROM_THE_START:
            self.default(language)

    def list(self) -> list[Context]:
        """Return all, oldest first."""
        return list(self._all.values())

    def find(self, identity: str) -> Context:
        """Return one by id. Raises Refused."""
        if (found := self._all.get(identity)) is None:
            raise Refused(404, f"Context {identity} not found")
        return found

    def default(self, language: str | None) -> Context:
        """Return the default context of a language (None: Python's), making it where there is none. Raises Refused."""
        known = _known(language)
        if (found := self._all.get(self._default.get(known, ""))) is None:
            found = self._add(known, self._home)
            self._default[known] = found.id
        return found

    async def create(self, language: str | None, cwd: str | None) -> Context:
        """Make a context, and its folder where it is not there, and start its kernel. Raises Refused, KernelFailed."""
        known = _known(language)
        folder = cwd or self._home
        try:
            await asyncio.to_thread(Path(folder).mkdir, parents=True, exist_ok=True)
        except (OSError, ValueError) as error:
            raise Refused(
                400, f"cwd {folder!r} is not a directory in the sandbox, and cannot be made: {error}"
            ) from None
        made = self._add(known, folder)
        try:
            await made.start()
        except BaseException:
            del self._all[made.id]
            await made.stop()
            raise
        return made

    async def remove(self, identity: str) -> None:
        """End one and forget it. Raises Refused."""
        found = self.find(identity)
        del self._all[identity]
        await found.stop()

    def renew(self) -> None:
        """Let every kernel look whether it is a copy."""
        for one in self._all.values():
            one.renew()

    async def stop(self) -> None:
        """End all."""
        for one in self.list():
            await one.stop()

    def _add(self, language: str, cwd: str) -> Context:
        made = Context(str(uuid.uuid4()), language, cwd, lambda: self._make(language, cwd))
        self._all[made.id] = made
        return made


def _known(language: str | None) -> str:
    if (found := ALIASES.get((language or "python").lower())) is None:
        there = ", ".join(sorted(set(ALIASES.values())))
        raise Refused(400, f"Language {language!r} is not installed in this template, which has {there}")
    return found
