"""`/v1/keys`."""

from fastapi import FastAPI, Request
from fastapi.responses import Response

from space.api.body import documented, read_json
from space.api.models import CreateKey, KeyList, KeyModel, NewKey
from space.api.sandboxes import project_of
from space.control import keys
from space.control.plane import Plane
from space.model.errors import NotFound
from space.model.ids import KeyId, is_id


def add_routes(app: FastAPI, plane: Plane) -> None:
    """Add the routes over `plane`."""

    @app.get("/v1/keys", tags=["keys"])
    async def list_keys(request: Request) -> KeyList:
        """List the project's API keys, without their text."""
        found = await keys.listed(plane.db, project_of(request))
        return KeyList(keys=[KeyModel.of(key) for key in found])

    @app.post("/v1/keys", tags=["keys"], status_code=201, openapi_extra=documented(CreateKey, required=True))
    async def create_key(request: Request) -> NewKey:
        """Make an API key. Its text is in this answer and nowhere else."""
        body = await read_json(request, CreateKey)
        made, text = await keys.create(plane.db, project_of(request), body.label)
        return NewKey(key=text, **KeyModel.of(made).model_dump())

    @app.delete("/v1/keys/{key_id}", tags=["keys"], status_code=204)
    async def revoke_key(request: Request, key_id: str) -> Response:
        """Revoke an API key; it is refused everywhere within a second."""
        if not is_id(key_id):
            raise NotFound("There is no such API key.")
        await keys.revoke(plane.db, project_of(request), KeyId(key_id))
        return Response(status_code=204)
