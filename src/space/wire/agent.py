"""What is said to the agent in a guest on its internal ports, and what it answers."""

from typing import Literal

import pydantic

Reason = Literal["boot", "warm", "restore", "fork", "resume"]
"""Why an agent is told who it is."""

FreezeReason = Literal["suspend", "snapshot", "fork", "pause"]


class AgentVolume(pydantic.BaseModel):
    """A volume, and where in the guest it is mounted."""

    volume: str
    path: str


class AgentInit(pydantic.BaseModel):
    """Told after every boot, restore, fork and resume, before user code can run: identity, clock, entropy, token."""

    sandbox_id: str
    template_id: str = ""
    """What its user calls the template; "" where nobody does."""
    hostname: str
    env: dict[str, str]
    access_token: str = pydantic.Field(repr=False)
    time_unix_ns: int
    entropy: str
    """Base64 of at least 32 random bytes."""

    ca_pem: str = ""
    """A root certificate that the guest is to trust besides its own; "" for none."""

    reason: Reason = "boot"
    hook_timeout_s: float = 10
    thaw: bool = True
    """False leaves user code stopped where it is."""

    service: bool = True
    """False does not start the image's own service: the image is being changed."""

    volumes: list[AgentVolume] = []
    """All that are to be mounted; others, that it may have from the sandbox it is a copy of, are unmounted."""


class AgentReady(pydantic.BaseModel):
    """The agent's answer."""

    version: str
    boot_id: str


class ReadyWish(pydantic.BaseModel):
    """Run the image's check until it succeeds, for at most `timeout_s`."""

    timeout_s: float


class FreezeWish(pydantic.BaseModel):
    """Stop user code, after the hook has run for at most `hook_timeout_s`.

    `sync` writes the guest's dirty pages to its disk; `fsfreeze` also makes the root file system consistent and closed
    to writes. After `limit_s` without a thaw the agent undoes it: the host may have gone.
    """

    reason: FreezeReason
    hook_timeout_s: float = 10
    sync: bool = False
    fsfreeze: bool = False
    limit_s: float = 30


class HookReport(pydantic.BaseModel):
    """How a script of the guest's own went; `status` is None where it did not exit by itself."""

    ran: bool = False
    status: int | None = None
    timed_out: bool = False
    output_tail: str = ""


class Frozen(pydantic.BaseModel):
    """The agent's answer to a freeze. `frozen` is False where the guest's kernel has no freezer."""

    frozen: bool
    freeze_ms: float = 0
    """Without the hook."""
    hook: HookReport = HookReport()


class ThawWish(pydantic.BaseModel):
    """Undo a freeze. A guest that stood still gets the time, and fresh entropy, before user code can read either."""

    reason: FreezeReason
    time_unix_ns: int = 0
    """0 leaves the clock."""
    entropy: str = ""
    """Base64."""


class GuestUsage(pydantic.BaseModel):
    """What a guest uses, as its agent tells: sizes in bytes, its processors' share in percent since asked last."""

    cpu_count: int = pydantic.Field(ge=1, le=1024)
    cpu_used_pct: float = pydantic.Field(ge=0, le=100)
    mem_total: int = pydantic.Field(ge=0, lt=2**63)
    mem_used: int = pydantic.Field(ge=0, lt=2**63)
    mem_cache: int = pydantic.Field(ge=0, lt=2**63)
    disk_total: int = pydantic.Field(ge=0, lt=2**63)
    disk_used: int = pydantic.Field(ge=0, lt=2**63)


class GuestActivity(pydantic.BaseModel):
    """What is going on in a guest, as its agent tells."""

    foreground_commands: int = pydantic.Field(ge=0)
    attached_readers: int = pydantic.Field(ge=0)
    open_connections: int = pydantic.Field(default=0, ge=0)
    idle_ms: int = pydantic.Field(default=0, ge=0)
    """Since something of this was going on, or a request came; on the guest's clock, which stands still with it."""
    frozen: bool = False
