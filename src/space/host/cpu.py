"""What the host's processors are, as far as a guest on them could notice."""

import hashlib
from pathlib import Path

_CPUINFO = Path("/proc/cpuinfo")
_TELLING = frozenset({"vendor_id", "cpu family", "model", "model name", "stepping", "microcode", "flags"})


def fingerprint(cpuinfo: str | None = None) -> str:
    """Return 12 hexadecimal digits that are equal for equal processors: maker, model, stepping, microcode, features.

    `cpuinfo` is the text of /proc/cpuinfo (proc(5)), None reads this host's; its first processor stands for all.
    """
    text = _CPUINFO.read_text() if cpuinfo is None else cpuinfo
    facts = dict(_fact(line) for line in text.partition("\n\n")[0].splitlines())
    told = "\n".join(f"{name}={facts[name]}" for name in sorted(_TELLING & facts.keys()))
    return hashlib.sha256(told.encode()).hexdigest()[:12]


def _fact(line: str) -> tuple[str, str]:
    name, _, value = line.partition(":")
    return name.strip(), " ".join(sorted(value.split())) if name.strip() == "flags" else value.strip()
