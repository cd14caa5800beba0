"""Which sandbox is behind which slot address: what the worker told this process, and nothing older."""

from collections.abc import Mapping

from space.model.ids import SandboxId


class SlotMap:
    """The map. Empty at start: until the worker has told, every sandbox is unknown and refused."""

    def __init__(self) -> None:
        self._dial: dict[SandboxId, str] = {}

    def dial_address(self, sandbox: SandboxId) -> str | None:
        """Return `address:port` of the sandbox's agent, or None for one that is not here."""
        return self._dial.get(sandbox)

    def put(self, sandbox: SandboxId, dial: str) -> None:
        """Let requests for a sandbox through to this address."""
        self._dial[sandbox] = dial

    def remove(self, sandbox: SandboxId) -> None:
        """Refuse requests for a sandbox from now on; fine when it is unknown."""
        self._dial.pop(sandbox, None)

    def replace(self, dials: Mapping[SandboxId, str]) -> None:
        """Forget everything and know this."""
        self._dial = dict(dials)
