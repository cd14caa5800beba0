"""Findings about the way out: where it leads, which name servers are asked, and what stands in it."""

import json

from space.cli import daemons
from space.cli.finding import Finding, Level, needed, wanted
from space.host import command, netns
from space.net import uplink
from space.settings import HostSettings


async def findings(settings: HostSettings) -> list[Finding]:
    """Return what `space up` would make of the uplink with these settings."""
    if settings.uplink == uplink.NONE:
        return [Finding(Level.OK, "uplink", "none: nothing leaves, whatever a policy says")]
    there = None if settings.uplink == uplink.HOST else netns.path(settings.uplink)
    if there is not None and not there.exists():
        cure = "Make the namespace (ip netns add), or set SPACE_UPLINK to `host` or `none`."
        return [needed("uplink", f"there is no network namespace {settings.uplink}", good=False, cure=cure)]
    servers = ", ".join(map(str, daemons.resolvers(settings)))
    dropping = await _dropping(settings.uplink)
    return [
        Finding(Level.OK, "uplink", settings.uplink),
        wanted(
            "name servers",
            servers or "none",
            bool(servers),
            "Set SPACE_RESOLVERS to servers that can be asked from outside of this host's loopback.",
        ),
        wanted(
            "forwarding",
            f"{', '.join(dropping)} drops what is forwarded" if dropping else "nothing stands in its way",
            not dropping,
            f"Sandboxes reach nothing until its owner lets {uplink.PREFIX}* pass: accept what comes in by it, and "
            "answers to it (Docker: both in the chain DOCKER-USER).",
        ),
    ]


async def _dropping(place: str) -> list[str]:
    """Return the tables, by family and name, whose base chain drops forwarded packets unless a rule accepts them."""
    there = None if place == uplink.HOST else netns.path(place)
    told = await command.run("nft", "-j", "list", "chains", netns=there, check=False)
    if told.status != 0:
        return []
    chains = [item["chain"] for item in json.loads(told.stdout)["nftables"] if "chain" in item]
    bad = [chain for chain in chains if chain.get("hook") == "forward" and chain.get("policy") == "drop"]
    return sorted({f"{chain['family']} {chain['table']}" for chain in bad})
