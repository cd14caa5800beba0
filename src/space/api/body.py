"""Reads a JSON request body: bounded while it comes in, then checked at once by a model.

The content type is not looked at: `curl -d '{...}'` says it is a form, and means JSON.
"""

from typing import Any, TypeVar

import pydantic
from fastapi import Request

from space.model.errors import BadRequest, InvalidArgument
from space.wire.request_body import read_bytes
from space.wire.serving import in_words

M = TypeVar("M", bound=pydantic.BaseModel)


async def read_json(request: Request, model: type[M]) -> M:
    """Return the body as `model`; an empty one counts as `{}`.

    Raises TooLarge over MAX_BYTES, BadRequest for what is not JSON, InvalidArgument naming the first wrong field.
    """
    body = await read_bytes(request)
    try:
        return model.model_validate_json(body or b"{}")
    except pydantic.ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        if first["type"] == "json_invalid":
            raise BadRequest(f"The body is not valid JSON: {first['msg'].removeprefix('Invalid JSON: ')}.") from None
        raise InvalidArgument(_explained(model, first["type"], first["loc"], first["msg"])) from None


def _explained(model: type[pydantic.BaseModel], kind: str, loc: tuple[int | str, ...], message: str) -> str:
    field = ".".join(str(part)[:80] for part in loc) or "The body"
    if kind == "extra_forbidden":
        return f"{field}: there is no such field; the fields are {', '.join(model.model_fields)}."
    return f"{field}: {in_words(message)}."


def documented(model: type[pydantic.BaseModel], *, required: bool) -> dict[str, Any]:
    """Return the OpenAPI fragment for a route whose body is read by `read_json`."""
    schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
    return {"requestBody": {"required": required, "content": {"application/json": {"schema": schema}}}}
