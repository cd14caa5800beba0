"""`/sandboxes` and `/v2/sandboxes`: create, show, kill."""

import json

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response

from space.control import egress, sandboxes
from space.control.plane import Plane
from space.e2b import answers, references
from space.e2b.models import NetworkUpdate, NewSandbox
from space.e2b.network import check_https_ports, checked_mask, egress_policy, proxy_password, said, said_anew
from space.e2b.request import project_of, read_json, sandbox_id
from space.model.errors import InvalidArgument
from space.model.operation import IdempotencyKey, idempotency_key
from space.model.sandbox import Deadlines, OnTimeout

TIMEOUT_V1_S, TIMEOUT_V2_S = 15, 300


def add_routes(app: FastAPI, plane: Plane, domain: str | None) -> None:
    """Add the routes over `plane`; `domain` as in answers.created."""

    async def create(request: Request, default_timeout_s: int) -> Response:
        body = await read_json(request, NewSandbox)
        project = project_of(request)
        _, template = await references.find_usable(plane, project, body.template)
        wish = _wish(body, template, default_timeout_s)
        made = await sandboxes.create(plane, project, wish, _idempotency_key(plane, request, body))
        return JSONResponse(answers.created(made, domain), 201)

    @app.post("/sandboxes")
    async def create_v1(request: Request) -> Response:
        """Make a sandbox."""
        return await create(request, TIMEOUT_V1_S)

    @app.post("/v2/sandboxes")
    async def create_v2(request: Request) -> Response:
        """Make a sandbox."""
        return await create(request, TIMEOUT_V2_S)

    @app.get("/sandboxes/{ident}")
    async def show(request: Request, ident: str) -> Response:
        """Show a sandbox."""
        found = await sandboxes.get(plane, project_of(request), sandbox_id(ident))
        return JSONResponse(answers.detailed(found, plane.clock))

    @app.put("/sandboxes/{ident}/network")
    async def set_network(request: Request, ident: str) -> Response:
        """Replace what may leave a sandbox; it holds, and what it no longer allows has ended, at the answer."""
        project, sandbox = project_of(request), sandbox_id(ident)
        body = await read_json(request, NetworkUpdate)
        policy = egress_policy(body, body.allow_internet_access)
        row = await sandboxes.get(plane, project, sandbox)
        said_now = said_anew(row.spec.e2b or {}, body)
        await egress.put(plane, project, sandbox, policy, said_now, proxy_password(body))
        return Response(status_code=204)

    @app.delete("/sandboxes/{ident}")
    async def kill(request: Request, ident: str) -> Response:
        """Delete a sandbox in whatever state; 404 where it is deleted already."""
        operation = await sandboxes.delete(plane, project_of(request), sandbox_id(ident), wait=True)
        if operation is None:
            raise answers.gone(ident)
        return Response(status_code=204)


def _wish(body: NewSandbox, template: str, default_timeout_s: int) -> sandboxes.Wish:
    if not body.auto_pause_memory and not body.auto_pause:
        raise InvalidArgument("autoPauseMemory: false needs autoPause: true; without it nothing is paused.")
    if not body.auto_pause_memory and body.auto_resume.enabled:
        raise InvalidArgument("autoResume does not go with autoPauseMemory: false; resume such a sandbox by connect.")
    if body.iam:
        raise InvalidArgument(
            "iam: identity tokens are not offered here: a deployment of one's own is no authority for them. Use a "
            "secret in network.rules."
        )
    check_https_ports(body.network)
    return sandboxes.Wish(
        template=template,
        vcpus=None,
        memory_mib=None,
        env=body.env,
        labels=body.metadata,
        deadlines=Deadlines(
            idle_timeout_s=None,
            timeout_s=default_timeout_s if body.timeout is None else body.timeout,
            on_timeout=OnTimeout.SUSPEND if body.auto_pause else OnTimeout.DELETE,
            auto_resume=body.auto_resume.enabled,
            timeout_restarts=True,
            timeout_memory=body.auto_pause_memory,
        ),
        policy=egress_policy(body.network, body.allow_internet_access),
        proxy_password=proxy_password(body.network),
        public_ports=body.network is None or body.network.allow_public_traffic,
        mask_host=checked_mask(body.network),
        e2b=said(body.network, body.allow_internet_access),
        volumes=[(mount.name, mount.path) for mount in body.volume_mounts],
    )


def _idempotency_key(plane: Plane, request: Request, body: NewSandbox) -> IdempotencyKey | None:
    text = request.headers.get("idempotency-key")
    if text is None:
        return None
    password = proxy_password(body.network)
    # the hash is stored, and must not be what a password can be guessed by
    code = "" if password is None else plane.vault.sign(password.get_secret_value(), "idempotency")
    return idempotency_key(text, json.dumps(body.model_dump(mode="json"), sort_keys=True) + code)
