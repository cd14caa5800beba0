"""The errors a caller can act on, one small tree.

Each class fixes a slug (`code`), an HTTP status and whether trying again can help. `str(error)` may reach the user
and says what to do; the cause, chained with `raise ... from`, is for our log only.
"""

from typing import ClassVar

from space.model.lifecycle import State


class SpaceError(Exception):
    """Base of all of them. `code` is stable and part of the API; `retry_after_s` becomes `Retry-After`.

    `sandbox` is the one that was made and stays, failed, where a create comes to this.
    """

    code: ClassVar[str] = "internal"
    finer: ClassVar[frozenset[str]] = frozenset()
    """Slugs that say more than `code`, of the same class; one has to be named here to stay of it on its way."""

    status: ClassVar[int] = 500
    title: ClassVar[str] = "Internal error"
    retryable: ClassVar[bool] = False
    retry_after_s: int | None = None
    sandbox: str | None = None

    def __init__(self, detail: str, *, code: str | None = None, retry_after_s: int | None = None) -> None:
        super().__init__(detail)
        if code is not None:
            self.slug = code
        else:
            self.slug = self.code
        if retry_after_s is not None:
            self.retry_after_s = retry_after_s


class InvalidArgument(SpaceError):
    """The request can never succeed as it is."""

    code, status, title = "invalid_argument", 422, "Invalid argument"
    finer = frozenset({"idempotency_key_reused"})


class InvalidPolicy(InvalidArgument):
    """An egress policy that is malformed, ambiguous or contradicts itself; the detail names the rule."""

    code, title = "invalid_policy", "Invalid policy"


class BadRequest(SpaceError):
    """The request cannot be read: not JSON, a path that no route has."""

    code, status, title = "bad_request", 400, "Bad request"


class Unauthorized(SpaceError):
    """No key, or one that is not valid."""

    code, status, title = "unauthorized", 401, "Unauthorized"


class NotFound(SpaceError):
    """No such thing, or not the caller's."""

    code, status, title = "not_found", 404, "Not found"
    finer = frozenset({"template_not_found"})


class Misdirected(SpaceError):
    """The request belongs to another process; the edge would have sent it there."""

    code, status, title = "misdirected", 421, "Misdirected request"


class Conflict(SpaceError):
    """The thing's present state does not allow this."""

    code, status, title = "conflict", 409, "Conflict"
    finer = frozenset({"disk_not_at_rest", "idempotency_in_flight", "name_taken", "overtaken", "template_in_use"}) | {
        f"sandbox_{state}" for state in ("busy", "starting", *(state for state in State if state is not State.FAILED))
    }


class SandboxFailed(Conflict):
    """The sandbox's VM is dead; its reason is in the text."""

    code, title = "sandbox_failed", "Sandbox failed"


class TooLarge(SpaceError):
    """The request body is over the limit."""

    code, status, title = "body_too_large", 413, "Request body too large"


class NoCapacity(SpaceError):
    """No worker has room now."""

    code, status, title, retryable = "no_capacity", 503, "No capacity", True
    retry_after_s = 5


class Unavailable(SpaceError):
    """A part that is needed does not answer; trying again is safe."""

    code, status, title, retryable = "unavailable", 503, "Temporarily unavailable", True
    finer = frozenset({"still_running"})
    retry_after_s = 1


class StorageFull(SpaceError):
    """The host's data area has no room left."""

    code, status, title, retryable = "storage_full", 507, "Storage full", True


class BootFailed(SpaceError):
    """The VM did not come up, twice; the detail ends with the tail of its console."""

    code, status, title = "boot_failed", 502, "Sandbox did not start"


class BuildFailed(SpaceError):
    """A template could not be built; the detail names the step and the last lines of its log."""

    code, status, title = "build_failed", 500, "Template build failed"


class SnapshotDamaged(SpaceError):
    """A file of a snapshot is missing or not what was written; nothing was started, and nothing was changed."""

    code, status, title = "snapshot_damaged", 409, "Snapshot damaged"


class SnapshotUnfit(SpaceError):
    """A memory snapshot was made by another VMM, kernel or processor; its disk can still be booted."""

    code, status, title = "snapshot_unfit", 409, "Snapshot does not fit this host"


class NotOffered(SpaceError):
    """Something that another product has and this one does not; the detail says what to do in its place."""

    code, status, title = "not_offered", 501, "Not offered"


class Stale(SpaceError):
    """A write with an epoch or generation that has been overtaken; the writer must read again."""

    code, status, title, retryable = "stale", 409, "Overtaken by a newer change", True


def _subclasses(cls: type[SpaceError]) -> list[type[SpaceError]]:
    return [cls, *(found for child in cls.__subclasses__() for found in _subclasses(child))]


def from_problem(code: str, detail: str, retry_after_s: int | None = None) -> SpaceError:
    """Rebuild the error that another process of ours sent as problem+json; an unknown slug stays on the base class."""
    for cls in _subclasses(SpaceError):
        if code in (cls.code, *vars(cls).get("finer", ())):
            return cls(detail, code=code, retry_after_s=retry_after_s)
    return SpaceError(detail, code=code, retry_after_s=retry_after_s)
