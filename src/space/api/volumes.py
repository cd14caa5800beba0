"""`/v1/volumes`: folders that outlive sandboxes. Their content is reached with a volume's token at `/volumecontent`."""

import datetime

import pydantic
from fastapi import FastAPI, Request
from fastapi.responses import Response

from space.api.body import documented, read_json
from space.api.sandboxes import project_of
from space.control import volumes
from space.control.plane import Plane
from space.model.volume import DEFAULT_SIZE_MIB, MAX_SIZE_MIB, MIN_SIZE_MIB, NAME, Volume


class CreateVolume(pydantic.BaseModel):
    """A new volume."""

    model_config = pydantic.ConfigDict(extra="forbid")

    name: str = pydantic.Field(pattern=f"^{NAME}$", description="What sandboxes of the project call it.")
    size_mib: int = pydantic.Field(
        default=DEFAULT_SIZE_MIB,
        ge=MIN_SIZE_MIB,
        le=MAX_SIZE_MIB,
        description="How much it may hold; it grows to that.",
    )


class VolumeModel(pydantic.BaseModel):
    """A volume. `token` gives access to its content (docs/howto/volumes.md), and to nothing else."""

    id: str
    name: str
    size_mib: int
    worker: str
    created_at: datetime.datetime
    token: str


class VolumeList(pydantic.BaseModel):
    """All of a project."""

    volumes: list[VolumeModel]


def add_routes(app: FastAPI, plane: Plane) -> None:
    """Add the routes over `plane`."""

    def shown(found: Volume) -> VolumeModel:
        return VolumeModel(
            id=found.id,
            name=found.name,
            size_mib=found.size_mib,
            worker=found.worker,
            created_at=found.created_at,
            token=volumes.token(plane, found.id),
        )

    @app.post("/v1/volumes", tags=["volumes"], status_code=201, openapi_extra=documented(CreateVolume, required=True))
    async def create_volume(request: Request) -> VolumeModel:
        """Make a volume, on one host; sandboxes that mount it run there."""
        body = await read_json(request, CreateVolume)
        return shown(await volumes.create(plane, project_of(request), body.name, body.size_mib))

    @app.get("/v1/volumes", tags=["volumes"])
    async def list_volumes(request: Request) -> VolumeList:
        """List the project's volumes."""
        return VolumeList(volumes=[shown(each) for each in await volumes.listed(plane, project_of(request))])

    @app.get("/v1/volumes/{volume}", tags=["volumes"])
    async def get_volume(request: Request, volume: str) -> VolumeModel:
        """Show a volume, by its name or id."""
        return shown(await volumes.get(plane, project_of(request), volume))

    @app.delete("/v1/volumes/{volume}", tags=["volumes"], status_code=204)
    async def delete_volume(request: Request, volume: str) -> Response:
        """Delete a volume that no sandbox has mounted, with all in it."""
        await volumes.delete(plane, project_of(request), volume)
        return Response(status_code=204)
