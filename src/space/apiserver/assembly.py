"""Puts the surfaces together into the one application that the api process serves."""

from starlette.types import ASGIApp

from space.api import app as api
from space.apiserver.edge_question import EdgeQuestion
from space.apiserver.front import Front, Surface
from space.control.access import Access
from space.control.figures import Figures
from space.control.plane import Plane
from space.e2b import app as e2b
from space.e2b import errors as e2b_errors
from space.wire.serving import answer


def assemble(plane: Plane, access: Access, domain: str | None) -> ASGIApp:
    """Return the application; `domain` is that below which names stand for sandboxes' ports, if there is one."""
    figures = Figures()
    return Front(
        Surface(api.create_app(plane, figures), answer, api.OPEN),
        Surface(e2b.create_app(plane, domain), e2b_errors.answer, e2b.OPEN, e2b.OPEN_BELOW),
        e2b.PARTS,
        access,
        EdgeQuestion(access, domain),
        figures,
    )
