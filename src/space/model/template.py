"""What a template is: the artifact that sandboxes start from."""

import dataclasses
import datetime

from space.model.ids import TemplateDigest

DEFAULT_DISK_MIB = 10 * 1024


@dataclasses.dataclass(frozen=True, slots=True)
class Template:
    """A built template: addressed by digest, named by tag.

    The digest covers root filesystem, kernel, agent, VMM version, accelerator and size, so equal digests start equal
    sandboxes. `used_bytes` is what it takes on disk, `disk_mib` what a guest sees.
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
