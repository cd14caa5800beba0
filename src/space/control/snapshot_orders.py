"""Takes the snapshots that were asked of a sandbox.

Asking writes an operation and lets the row lag; it is taken when the sandbox is reconciled, under its lease, so that no
suspension comes between, and again where the process died before it was recorded.
"""

import dataclasses

from space.control.plane import Plane
from space.model.errors import SpaceError, Stale, Unavailable
from space.model.lifecycle import State
from space.model.operation import Operation, OperationKind
from space.model.sandbox import Desired, Sandbox
from space.model.template import Template, TemplateKind
from space.store import operations, templates
from space.telemetry import logger
from space.wire.worker import SnapshotSandbox

TAKEN_FROM = frozenset({State.RUNNING, State.PAUSED, State.SUSPENDED})


async def take_asked(plane: Plane, sandbox: Sandbox) -> None:
    """Take the snapshots that were asked of a sandbox; done first, so that they show it as it was then."""
    if sandbox.state not in TAKEN_FROM or sandbox.spec.desired is Desired.DELETED or sandbox.generation < 2:
        return
    if _only_another_state_is_wished(sandbox):
        return
    for operation in await operations.asked(plane.db, sandbox.id, OperationKind.SNAPSHOT):
        try:
            template = await _take(plane, sandbox, operation)
        except (Stale, Unavailable):
            raise
        except SpaceError as error:
            async with plane.db.transaction() as tx:
                await operations.finish(tx, operation.id, error)
            logger().info("snapshot_refused", sandbox=sandbox.id, error=str(error))
            continue
        async with plane.db.transaction() as tx:
            await templates.record(tx, sandbox.project, template)
            await operations.finish(tx, operation.id, template.digest)
        logger().info("snapshot_taken", sandbox=sandbox.id, name=template.name, digest=template.digest)


def _only_another_state_is_wished(sandbox: Sandbox) -> bool:
    """Tell whether a row answers all wishes but one, and that one is for another state: then no snapshot was asked.

    One that its worker paused is in another state than is wished without anybody having asked for anything.
    """
    unanswered = sandbox.generation - sandbox.observed_generation
    return unanswered == 1 and str(sandbox.state) != str(sandbox.spec.desired) and sandbox.reason is None


async def _take(plane: Plane, sandbox: Sandbox, operation: Operation) -> Template:
    assert sandbox.worker is not None
    name = str(operation.arguments.get("name") or f"snapshot-{operation.id}")
    memory = bool(operation.arguments.get("memory", True))
    wish = SnapshotSandbox(epoch=sandbox.epoch, name=name, memory=memory)
    made = await plane.workers.client(sandbox.worker).snapshot(sandbox.id, wish)
    return dataclasses.replace(
        made,
        name=name,
        kind=TemplateKind.SNAPSHOT,
        sandbox=sandbox.id,
        memory=memory,
        vcpus=sandbox.spec.vcpus,
        memory_mib=sandbox.spec.memory_mib,
    )
