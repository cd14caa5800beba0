"""What clients read: sandboxes with E2B's names for fields.

    E2B's state    our states
    running        running, restoring
    paused         paused, suspending, suspended
    not there      creating, failed, deleting, deleted

`clientID` is a constant: E2B keeps it for old clients, and nothing goes by it. `envdVersion` says which of the guest's
abilities a client may use; ours speaks all that this version does.
"""

import datetime

from space.control.clock import Clock
from space.control.traffic import traffic_token
from space.e2b.references import shown
from space.model.errors import NotFound
from space.model.lifecycle import State
from space.model.sandbox import OnTimeout, Sandbox
from space.model.template import DEFAULT_DISK_MIB

CLIENT_ID = "00000000"
ENVD_VERSION = "0.6.13"

RUNNING = frozenset({State.RUNNING, State.RESTORING})
PAUSED = frozenset({State.PAUSED, State.SUSPENDING, State.SUSPENDED})

Json = dict[str, object]


def gone(ident: str) -> NotFound:
    """Return the error for a sandbox that is not there."""
    return NotFound(f"sandbox {ident[:40]!r} was not found")


def created(sandbox: Sandbox, domain: str | None) -> Json:
    """Return what create, connect, resume and fork answer.

    `domain`: where the names of its ports lead; without one a client takes what it is configured with.
    """
    found: Json = {
        "templateID": shown(sandbox.spec.template_name),
        "sandboxID": sandbox.id,
        "clientID": CLIENT_ID,
        "envdVersion": ENVD_VERSION,
        "alias": shown(sandbox.spec.template_name),
        "envdAccessToken": sandbox.spec.agent_token,
        "domain": domain,
    }
    if not sandbox.spec.public_ports:
        found["trafficAccessToken"] = traffic_token(sandbox.spec.agent_token)
    return found


def listed(sandbox: Sandbox, clock: Clock) -> Json:
    """Return an entry of a list."""
    started = sandbox.created_at
    found: Json = {
        "templateID": shown(sandbox.spec.template_name),
        "alias": shown(sandbox.spec.template_name),
        "sandboxID": sandbox.id,
        "clientID": CLIENT_ID,
        "startedAt": started.isoformat(),
        "endAt": _end(sandbox, clock).isoformat(),
        "cpuCount": sandbox.spec.vcpus,
        "memoryMB": sandbox.spec.memory_mib,
        "diskSizeMB": DEFAULT_DISK_MIB,
        "state": "running" if sandbox.state in RUNNING else "paused",
        "envdVersion": ENVD_VERSION,
        "metadata": dict(sandbox.spec.labels),
    }
    if sandbox.spec.volumes:
        found["volumeMounts"] = [{"name": mount.name, "path": mount.path} for mount in sandbox.spec.volumes]
    return found


def detailed(sandbox: Sandbox, clock: Clock) -> Json:
    """Return what the info call answers; raises NotFound for one that is not there in E2B's sense."""
    if sandbox.state not in RUNNING | PAUSED:
        raise gone(sandbox.id)
    said = sandbox.spec.e2b or {}
    deadlines = sandbox.spec.deadlines
    found: Json = listed(sandbox, clock) | {
        "envdAccessToken": sandbox.spec.agent_token,
        "lifecycle": {
            "autoResume": deadlines.auto_resume,
            "onTimeout": "kill" if deadlines.on_timeout is OnTimeout.DELETE else "pause",
        },
        "allowInternetAccess": said.get("allowInternetAccess"),
    }
    if "network" in said:
        found["network"] = said["network"]
    if sandbox.state not in RUNNING:
        found["pauseMode"] = "full" if sandbox.spec.suspend_memory else "filesystem"
    return found


def _end(sandbox: Sandbox, clock: Clock) -> datetime.datetime:
    """Return when it ends; of a paused one when it was paused, of one without a timeout the last day there is."""
    if sandbox.state in PAUSED:
        return sandbox.updated_at
    return clock.shown(sandbox.expires_at) or datetime.datetime.max.replace(tzinfo=datetime.UTC)
