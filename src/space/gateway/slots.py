"""Which sandbox is behind which slot address: what the worker told this process, and nothing older."""

from collections.abc import Mapping

from space.model.ids import SandboxId
from space.wire.gateway import AGENT_PORT


class SlotMap:
    """The map. Empty at start: until the worker has told, every sandbox is unknown and refused.

    `told`: the worker has told all of it, so that what is not in it does not run here.
    """

    def __init__(self) -> None:
        self._dial: dict[SandboxId, str] = {}
        self.told = False

    def dial_address(self, sandbox: SandboxId, port: int = AGENT_PORT) -> str | None:
        """Return `address:port` of a sandbox's agent, or of another port of its guest; None for one that is not here.

        The agent's is wherever the worker says that it is.
        """
        dial = self._dial.get(sandbox)
        if dial is None or port == AGENT_PORT:
            return dial
        return f"{dial.rpartition(':')[0]}:{port}"

    def put(self, sandbox: SandboxId, dial: str) -> None:
        """Let requests for a sandbox through to the agent at this address."""
        self._dial[sandbox] = dial

    def remove(self, sandbox: SandboxId) -> None:
        """Refuse requests for a sandbox from now on; fine when it is unknown."""
        self._dial.pop(sandbox, None)

    def replace(self, dials: Mapping[SandboxId, str]) -> None:
        """Forget everything and know this."""
        self._dial = dict(dials)
        self.told = True
