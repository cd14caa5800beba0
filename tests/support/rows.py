"""Rows for tests, written through the store."""

import datetime
from collections.abc import Mapping
from typing import Any

from space.model.ids import ProjectId, SandboxId, TemplateDigest, WorkerId, new_id
from space.model.lifecycle import Event, State
from space.model.sandbox import Desired, Sandbox, SandboxSpec
from space.model.template import Template
from space.store import sandboxes, templates, wishes
from space.store.db import Database

DIGEST = TemplateDigest("sha256:" + "a" * 64)
_PATHS: dict[State, tuple[Event, ...]] = {
    State.CREATING: (),
    State.RUNNING: (Event.STARTED,),
    State.PAUSED: (Event.STARTED, Event.PAUSED),
    State.SUSPENDING: (Event.STARTED, Event.SUSPEND_BEGUN),
    State.SUSPENDED: (Event.STARTED, Event.SUSPEND_BEGUN, Event.SUSPENDED),
    State.RESTORING: (Event.STARTED, Event.SUSPEND_BEGUN, Event.SUSPENDED, Event.RESTORE_BEGUN),
    State.FAILED: (Event.STARTED, Event.FAILED),
    State.DELETING: (Event.DELETE_ASKED,),
    State.DELETED: (Event.DELETE_ASKED, Event.DELETED),
}

_WISHED = {Event.SUSPEND_BEGUN: Desired.SUSPENDED, Event.RESTORE_BEGUN: Desired.RUNNING}
"""What a client wished before."""


async def insert_template(db: Database, project: ProjectId, name: str = "base") -> Template:
    """Record a template as if a worker had built it."""
    template = Template(
        digest=DIGEST,
        name=name,
        disk_mib=10240,
        used_bytes=1 << 30,
        kernel_release="6.1",
        agent_version="1",
        vmm="qemu 7.2 tcg",
        built_at=datetime.datetime.now(datetime.UTC),
        build_s=1.5,
    )
    async with db.transaction() as tx:
        await templates.record(tx, project, template)
    return template


async def insert_sandbox(
    db: Database,
    project: ProjectId,
    *,
    state: State = State.CREATING,
    reason: str | None = None,
    worker: str | None = None,
    env: Mapping[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
    **spec_fields: Any,
) -> Sandbox:
    """Record a sandbox and lead it to `state`; nobody holds its lease. `spec_fields` are those of SandboxSpec."""
    spec = SandboxSpec(
        template=DIGEST,
        template_name="base",
        vcpus=1,
        memory_mib=512,
        env=env or {},
        labels=labels or {},
        **({"agent_token": "t0ken"} | spec_fields),
    )
    async with db.transaction() as tx:
        placed = None if worker is None else WorkerId(worker)
        made = await sandboxes.insert(tx, SandboxId(new_id()), project, spec, placed, None)
        assert made is not None, "insert a template first"
        for event in _PATHS[state]:
            if event in _WISHED:
                made = await wishes.wish(tx, made.id, _WISHED[event])
            made = await sandboxes.move(tx, made, event, reason=reason)
    return made
