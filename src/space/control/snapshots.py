"""Use cases on snapshots: a frozen copy of a sandbox, which is a template of its project afterwards."""

from space.control import lifecycle, templates
from space.control.plane import Plane
from space.control.snapshot_orders import TAKEN_FROM
from space.control.waiting import carried_out
from space.model.errors import Conflict, InvalidArgument, NotFound
from space.model.ids import ProjectId, SandboxId, TemplateDigest, is_template_name
from space.model.operation import Operation, OperationKind
from space.model.template import Template, TemplateKind
from space.store import operations, wishes
from space.store import templates as rows


async def take(
    plane: Plane, project: ProjectId, sandbox: SandboxId, name: str | None, *, memory: bool, wait: bool
) -> tuple[Template | None, Operation]:
    """Ask for a snapshot, and wait for it unless `wait` is False; the sandbox goes on.

    Raises NotFound, SandboxFailed, Conflict (`name_taken`, or in the middle of a change), and what the worker refused
    it with. Unavailable where the worker does not answer: it will be taken then.
    """
    if name is not None:
        await check_name(plane, project, name)
    arguments: dict[str, str | bool] = {"memory": memory} | ({} if name is None else {"name": name})
    async with plane.db.transaction() as tx:
        row = await lifecycle.locked(tx, project, sandbox)
        if row.state not in TAKEN_FROM:
            raise Conflict(f"Sandbox {sandbox} is {row.state}. Try again.", code="sandbox_busy", retry_after_s=1)
        row = await wishes.raise_generation(tx, sandbox, plane.clock.now())
        operation = await operations.insert(tx, row, OperationKind.SNAPSHOT, arguments=arguments)
        assert operation is not None, "only an idempotency key can be taken"
    if not wait:
        return None, operation
    done = await carried_out(plane, operation)
    return await result_of(plane, done), done


async def check_name(plane: Plane, project: ProjectId, name: str) -> None:
    """Raise where a snapshot may not have this name: it is no name, or a built template has it.

    A name that an earlier snapshot has moves to the later one, as with templates.
    """
    if not is_template_name(name):
        raise InvalidArgument(
            "name must be 1 to 63 characters of a-z, 0-9, '.', '_', '-', and begin and end with a letter or digit."
        )
    found = await rows.find(plane.db, project, name)
    if found is not None and found.kind is not TemplateKind.SNAPSHOT:
        raise Conflict(f"There is a template {name!r}; choose another name for the snapshot.", code="name_taken")


async def result_of(plane: Plane, operation: Operation) -> Template:
    """Return the snapshot that a successful operation has made; raises NotFound where it was deleted since."""
    assert operation.result is not None
    return await find(plane, operation.project, TemplateDigest(operation.result))


async def find(plane: Plane, project: ProjectId, name_or_digest: str) -> Template:
    """Return the project's snapshot with this name or digest; raises NotFound."""
    found = await templates.find_or_none(plane, project, name_or_digest)
    if found is None or found.kind is not TemplateKind.SNAPSHOT:
        raise NotFound(f"There is no snapshot {name_or_digest[:80]!r}; `space snapshot ls` shows what there is.")
    return found


async def listed(plane: Plane, project: ProjectId) -> list[Template]:
    """Return the project's snapshots, newest first."""
    return await rows.listed(plane.db, project, (TemplateKind.SNAPSHOT,))


async def delete(plane: Plane, project: ProjectId, name_or_digest: str) -> None:
    """Delete a snapshot and its files; raises as templates.delete."""
    await templates.delete(plane, project, (await find(plane, project, name_or_digest)).digest)
