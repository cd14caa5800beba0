"""What `space doctor` says about how clients reach the edge: a domain, and a certificate for it."""

import datetime
import ipaddress

from space.cli import tls
from space.cli.finding import Finding, Level, wanted
from space.model.errors import InvalidArgument
from space.settings import HostSettings

_SOON = datetime.timedelta(days=14)


def findings(settings: HostSettings) -> list[Finding]:
    """Return what was found; nothing where the edge is for this host alone and there is no domain."""
    try:
        certificate = tls.read(settings)
    except InvalidArgument as error:
        return [Finding(Level.BLOCKER, "certificate", "cannot be used", str(error))]
    if certificate is None:
        return _without(settings)
    left = certificate.not_after - datetime.datetime.now(datetime.UTC)
    found = [
        wanted(
            "certificate", f"good until {certificate.not_after:%Y-%m-%d}", left > _SOON,
            "Renew it; the edge takes the new files by itself.",
        )
    ]  # fmt: skip
    if settings.domain is not None:
        domain = settings.domain.partition(":")[0]
        found.append(
            wanted(
                "certificate's names", ", ".join(certificate.names) or "none", certificate.covers(domain),
                f"Sandboxes' ports are called <port>-<id>.{domain}: get a certificate for *.{domain}.",
            )
        )  # fmt: skip
    return found


def _without(settings: HostSettings) -> list[Finding]:
    private = ipaddress.ip_address(settings.host).is_loopback
    if settings.domain is None and private:
        return []
    where = f"{settings.host}, in clear text"
    cure = (
        "Give it a certificate (SPACE_TLS_CERT, SPACE_TLS_KEY), or keep it on loopback behind a proxy of yours that "
        "has one: keys and tokens are in each request."
    )
    return [wanted("edge", where, private, cure)]
