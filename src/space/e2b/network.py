"""E2B's `network` and `allow_internet_access` as a policy of ours, and as it is read back. Pure.

Left out, everything may leave that a name leads to on the public internet (preset `open`): what E2B's users expect.
"""

import re

from space.e2b.models import Network
from space.model.errors import InvalidArgument

ALL_TRAFFIC = "0.0.0.0/0"
Json = dict[str, object]

_MASK = re.compile(r"(?=.{1,255}$)[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?(:[0-9]{1,5})?")


def egress_policy(network: Network | None, allow_internet_access: bool | None) -> Json:
    """Return the policy; raises InvalidArgument."""
    if network is not None and (network.allow_out or network.deny_out not in ([], [ALL_TRAFFIC])):
        raise InvalidArgument("network: only denyOut of all traffic is offered yet.")
    if allow_internet_access is False or (network is not None and ALL_TRAFFIC in network.deny_out):
        return {"default": "deny"}
    return {"preset": "open"}


def checked_mask(network: Network | None) -> str | None:
    """Return the Host that servers in the sandbox see; raises InvalidArgument for what cannot be one."""
    mask = None if network is None else network.mask_request_host
    if mask is not None and _MASK.fullmatch(mask.replace("${PORT}", "0")) is None:
        raise InvalidArgument(f"mask request host is not valid: {mask[:80]}")
    return mask


def said(network: Network | None, allow_internet_access: bool | None) -> Json:
    """Return what a client said, as the info call answers it."""
    found: Json = {"allowInternetAccess": allow_internet_access}
    if network is not None:
        found["network"] = network.model_dump(by_alias=True, exclude_none=True, exclude_unset=True)
    return found
