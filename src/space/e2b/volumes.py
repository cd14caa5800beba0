"""`/volumes`, and `/volumecontent` with a volume's own token: folders that outlive sandboxes.

Errors about content have a text as their `code`, and are those of the volume's server; ours are worded alike.
"""

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from space.control import volumes
from space.control.plane import Plane
from space.e2b.errors import status_of
from space.e2b.request import Body, project_of, read_json, text
from space.model.errors import Conflict, InvalidArgument, NotFound, SpaceError
from space.model.volume import Volume

CONTENT = "/volumecontent/"
_METHODS = {"dir": ("GET", "POST"), "path": ("GET", "PATCH", "DELETE"), "file": ("GET", "PUT")}


class _NewVolume(Body):
    name: str


def add_routes(app: FastAPI, plane: Plane) -> None:
    """Add the routes over `plane`."""

    def with_token(found: Volume) -> dict[str, object]:
        return {"volumeID": found.id, "name": found.name, "token": volumes.token(plane, found.id)}

    @app.post("/volumes")
    async def create(request: Request) -> Response:
        """Make a volume."""
        wish = await read_json(request, _NewVolume)
        try:
            made = await volumes.create(plane, project_of(request), wish.name)
        except Conflict as error:  # E2B has no 409 here
            raise InvalidArgument(str(error)) from None
        return JSONResponse(with_token(made), 201)

    @app.get("/volumes")
    async def listed(request: Request) -> Response:
        """List the project's volumes."""
        found = await volumes.listed(plane, project_of(request))
        return JSONResponse([{"volumeID": each.id, "name": each.name} for each in found])

    @app.get("/volumes/{volume}")
    async def show(request: Request, volume: str) -> Response:
        """Show a volume, and the token for its content."""
        return JSONResponse(with_token(await volumes.get(plane, project_of(request), text(volume))))

    @app.delete("/volumes/{volume}")
    async def delete(request: Request, volume: str) -> Response:
        """Delete a volume that no sandbox has mounted."""
        await volumes.delete(plane, project_of(request), text(volume))
        return Response(status_code=204)

    @app.api_route(CONTENT + "{volume}/{part}", methods=["GET", "POST", "PUT", "PATCH", "DELETE"])
    async def content(request: Request, volume: str, part: str) -> Response:
        """Reach what is in a volume."""
        if request.method not in _METHODS.get(part, ()):
            return _refusal(NotFound("There is nothing at this path."))
        return _Content(plane, request, text(volume), part)


class _Content(Response):
    """The answer of a volume's server, passed on as it comes."""

    def __init__(self, plane: Plane, request: Request, volume: str, part: str) -> None:
        super().__init__()
        self._plane, self._request, self._volume, self._part = plane, request, volume, part

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = self._request
        scheme, _, shown = request.headers.get("authorization", "").partition(" ")
        shown = shown.strip() if scheme.lower() == "bearer" else ""
        body = request.stream() if request.method in ("PUT", "PATCH") else None
        asked = (self._volume, shown, self._part, request.method, request.url.query, body)
        try:
            async with volumes.content(self._plane, *asked) as answer:
                await StreamingResponse(answer.body, answer.status, answer.headers)(scope, receive, send)
        except SpaceError as error:
            await _refusal(error)(scope, receive, send)


def _refusal(error: SpaceError) -> Response:
    return JSONResponse({"code": error.slug, "message": str(error)}, status_of(error))
