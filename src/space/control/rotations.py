"""Keeps what providers give in place of secrets. Nobody but the gateway that was given it has it until then."""

from space.control.plane import Plane
from space.control.secret_values import context
from space.model.errors import InvalidArgument
from space.model.rotation import Rotation
from space.model.secret import check_value
from space.store import policies, secrets
from space.store.secrets import Place
from space.telemetry import logger


async def keep(plane: Plane, rotation: Rotation) -> bool:
    """Make it the next version of its secret, if a value stands there that it replaces; returns whether it did.

    It did not where it is stored already, or where somebody set another value or another gateway was quicker, whose
    value stands then. The sandboxes that use the secret lag from then on (controllers/egress.py pushes to them). Raises
    CannotOpen where the value that stands there cannot be compared, and changes nothing.
    """
    log = logger().bind(secret_id=rotation.secret)
    try:
        check_value(rotation.value)
    except InvalidArgument as error:
        log.error("rotation_not_kept", error=str(error))  # noqa: TRY400 - its text is all there is
        return False
    project = await secrets.owner(plane.db, rotation.secret)
    if project is None:
        log.info("rotation_not_kept", why="the secret was removed")
        return False
    async with plane.db.transaction() as tx:
        await secrets.lock(tx, project)
        stands = await secrets.sealed_one(tx, rotation.secret)
        if stands is None:
            return False
        value = plane.vault.open(stands.sealed, context(stands.place))
        if value == rotation.value:
            return False
        if not rotation.replaces(value):
            log.warning("rotation_not_kept", secret=stands.name, why="another value was stored before it")
            return False
        place = Place(stands.place.id, stands.place.version + 1)
        version = await secrets.rotate(tx, stands.place, plane.vault.seal(rotation.value, context(place)))
        touched = await policies.raise_secrets(tx, project, stands.name)
    log.info("secret_rotated", project=project, secret=stands.name, version=version, sandboxes=len(touched))
    return True
