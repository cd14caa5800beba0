"""What a request says: its caller's project, its path's parameters, its body."""

from typing import TypeVar
from urllib.parse import unquote

import pydantic
from fastapi import Request

from space.control.access import CALLER
from space.model.errors import InvalidArgument, NotFound
from space.model.ids import ProjectId, SandboxId, is_id
from space.wire.request_body import read_bytes
from space.wire.serving import in_words


class Body(pydantic.BaseModel):
    """Base of what clients send. A field that is not known is ignored: a newer client may send more.

    JSON null is as good as leaving a field out: some clients cannot leave one out.
    """

    model_config = pydantic.ConfigDict(extra="ignore", populate_by_name=True)

    @pydantic.model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, given: object) -> object:
        if isinstance(given, dict):
            return {name: value for name, value in given.items() if value is not None}
        return given


B = TypeVar("B", bound=Body)


def project_of(request: Request) -> ProjectId:
    """Return the project of an authenticated request."""
    project: ProjectId = request.scope[CALLER].project
    return project


def sandbox_id(text: str) -> SandboxId:
    """Return the id in a path; raises NotFound for what cannot be one. An old client's `<id>-<client>` is shortened."""
    ident = text.partition("-")[0]
    if not is_id(ident):
        raise NotFound(f"sandbox {text[:40]!r} was not found")
    return SandboxId(ident)


def text(parameter: str) -> str:
    """Return a parameter of the raw path as it was meant; raises InvalidArgument for what is no UTF-8."""
    try:
        return unquote(parameter, errors="strict")
    except UnicodeDecodeError:
        raise InvalidArgument("The path is not UTF-8.") from None


async def read_json(request: Request, model: type[B]) -> B:
    """Return the body as `model`; an empty one counts as `{}`. Raises TooLarge, and InvalidArgument saying where."""
    body = await read_bytes(request)
    try:
        return model.model_validate_json(body or b"{}")
    except pydantic.ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        field = ".".join(str(part)[:80] for part in first["loc"]) or "The body"
        raise InvalidArgument(f"{field}: {in_words(first['msg'])}.") from None
