"""What a template is: the artifact that sandboxes start from."""

import dataclasses
import datetime
import enum

from space.model.ids import SandboxId, TemplateDigest

DEFAULT_DISK_MIB = 10 * 1024
RECIPES = ("base", "code-interpreter-v1")
"""The recipes that SPACE comes with (`space.image.recipe`); `space template build NAME` builds each by its name."""


def how_to_get(name: str) -> str:
    """Return what to do where there is no template of a name."""
    if name in RECIPES:
        return f"Build it with `space template build {name}`: it takes some minutes, once."
    return f"`space template ls` shows what there is; `space template build` builds {' and '.join(RECIPES)}."


class TemplateKind(enum.StrEnum):
    """How a template came to be."""

    BUILT = "built"
    SNAPSHOT = "snapshot"


@dataclasses.dataclass(frozen=True, slots=True)
class Template:
    """A built template: addressed by digest, named by tag.

    The digest covers root filesystem, kernel, agent, VMM version, accelerator and size, so equal digests start equal
    sandboxes. `used_bytes` is what it takes on disk, `disk_mib` what a guest sees.

    A snapshot knows the sandbox it was taken of, whether it holds that one's memory, and its size: what starts from its
    memory has the same number of vCPUs and amount of memory.
    """

    digest: TemplateDigest
    name: str
    disk_mib: int
    used_bytes: int
    kernel_release: str
    agent_version: str
    vmm: str
    built_at: datetime.datetime
    build_s: float
    kind: TemplateKind = TemplateKind.BUILT
    sandbox: SandboxId | None = None
    memory: bool = False
    vcpus: int | None = None
    memory_mib: int | None = None
