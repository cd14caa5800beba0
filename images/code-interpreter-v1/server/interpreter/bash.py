"""Variables for one run of a bash kernel, which has no other ear for them: commands around the run; pure."""

import shlex
from collections.abc import Mapping

_BEFORE = "__before_run_"


def entering(env: Mapping[str, str]) -> str:
    """Return commands that set the variables and remember what they were."""
    lines = []
    for number, (name, value) in enumerate(env.items()):
        kept = f"{_BEFORE}{number}"
        lines.append(f'{kept}_set=${{{name}+yes}} {kept}="${{{name}-}}"; export {name}={shlex.quote(value)}')
    return "\n".join(lines)


def leaving(env: Mapping[str, str]) -> str:
    """Return commands that make the variables what they were before `entering`."""
    lines = []
    for number, name in enumerate(env):
        kept = f"{_BEFORE}{number}"
        lines.append(f'if [ -n "${kept}_set" ]; then {name}=${kept}; else unset {name}; fi; unset {kept} {kept}_set')
    return "\n".join(lines)
