"""`/v1/secrets`: values go in and never come out."""

from fastapi import FastAPI, Request
from fastapi.responses import Response

from space.api.body import documented, read_json
from space.api.egress_models import PutSecret, SecretList, SecretModel
from space.api.sandboxes import project_of
from space.control import secrets
from space.control.plane import Plane


def add_routes(app: FastAPI, plane: Plane) -> None:
    """Add the routes over `plane`."""

    @app.post("/v1/secrets", tags=["secrets"], status_code=201, openapi_extra=documented(PutSecret, required=True))
    async def put_secret(request: Request) -> SecretModel:
        """Give a secret its first or next value; requests of sandboxes that use it have it from this answer on."""
        body = await read_json(request, PutSecret)
        made = await secrets.put(plane, project_of(request), body.name, body.value.get_secret_value())
        return SecretModel.of(made)

    @app.get("/v1/secrets", tags=["secrets"])
    async def list_secrets(request: Request) -> SecretList:
        """List the project's secrets, without their values."""
        found = await secrets.listed(plane, project_of(request))
        return SecretList(secrets=[SecretModel.of(secret) for secret in found])

    @app.delete("/v1/secrets/{name}", tags=["secrets"], status_code=204)
    async def delete_secret(request: Request, name: str) -> Response:
        """Remove a secret; requests that need it are refused from this answer on."""
        await secrets.delete(plane, project_of(request), name)
        return Response(status_code=204)
