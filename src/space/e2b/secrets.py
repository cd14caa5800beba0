"""`/secrets`: values go in and never come out. A secret is called by its name or its id, `sec_...`."""

import pydantic
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response

from space.control import secrets
from space.control.plane import Plane
from space.e2b.answers import Json
from space.e2b.pages import MAX_PAGE, page_of
from space.e2b.request import Body, project_of, read_json, text
from space.model.ids import is_id
from space.model.secret import Secret

_PREFIX = "sec_"


class NewSecret(Body):
    """A new secret."""

    name: str
    value: pydantic.SecretStr
    metadata: dict[str, str] = pydantic.Field(default={})


class SecretUpdate(Body):
    """A secret's next value. Without `metadata` that stays as it is."""

    value: pydantic.SecretStr
    metadata: dict[str, str] | None = None


def add_routes(app: FastAPI, plane: Plane) -> None:
    """Add the routes over `plane`."""

    @app.post("/secrets")
    async def create(request: Request) -> Response:
        """Give a new secret its value."""
        body = await read_json(request, NewSecret)
        made = await secrets.create(plane, project_of(request), body.name, body.value.get_secret_value(), body.metadata)
        return JSONResponse(_shown(made), 201)

    @app.get("/secrets")
    async def list_secrets(
        request: Request,
        limit: int = MAX_PAGE,
        nextToken: str = "",  # noqa: N803 - the name in the protocol
    ) -> Response:
        """List secrets by name, without their values."""
        found = await secrets.listed(plane, project_of(request))
        page, headers = page_of(found, lambda one: one.id, limit, nextToken)
        return JSONResponse([_shown(one) for one in page], headers=headers)

    @app.get("/secrets/{selector}")
    async def show(request: Request, selector: str) -> Response:
        """Show a secret without its value."""
        return JSONResponse(_shown(await secrets.find(plane, project_of(request), _meant(selector))))

    @app.post("/secrets/{selector}")
    async def update(request: Request, selector: str) -> Response:
        """Give a secret its next value; requests of sandboxes that use it have it from this answer on."""
        body = await read_json(request, SecretUpdate)
        project, value = project_of(request), body.value.get_secret_value()
        return JSONResponse(_shown(await secrets.update(plane, project, _meant(selector), value, body.metadata)))

    @app.delete("/secrets/{selector}")
    async def delete(request: Request, selector: str) -> Response:
        """Remove a secret; requests that need it are refused from this answer on."""
        project = project_of(request)
        found = await secrets.find(plane, project, _meant(selector))
        await secrets.delete(plane, project, found.name)
        return Response(status_code=204)


def _meant(selector: str) -> str:
    plain = text(selector)
    ident = plain.removeprefix(_PREFIX)
    return ident if plain.startswith(_PREFIX) and is_id(ident) else plain


def _shown(secret: Secret) -> Json:
    return {
        "secretID": _PREFIX + secret.id,
        "name": secret.name,
        "currentVersion": secret.version,
        "metadata": dict(secret.metadata),
        "createdAt": secret.created_at.isoformat(),
        "updatedAt": secret.updated_at.isoformat(),
    }
