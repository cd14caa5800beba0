"""Binaries of our Go code, built from source on this host and kept by the digest of that source: the guest's agent,
and the server of volumes.

Both use Go's standard library alone, so the build needs the compiler and no network.
"""

import asyncio
import dataclasses
import hashlib
import shutil
import tempfile
from pathlib import Path

from space.host import files
from space.image.work import Log, stream
from space.layout import Layout
from space.model.errors import BuildFailed
from space.settings import search_path

_BUILD_TIMEOUT_S = 600
"""Ten times what it takes on two idle cores, the standard library included: a first start may share them."""

_FLAGS = ("-trimpath", "-buildvcs=false", "-tags=nethttpomithttp2")


@dataclasses.dataclass(frozen=True, slots=True)
class Agent:
    """A built agent. `version` is what it says of itself: the first 12 digits of its source's digest."""

    digest: str
    version: str
    binary: Path


def source_digest(folder: Path) -> str:
    """Return the SHA-256 over what the binary is made of: Go files but tests, go.mod, and our flags."""
    total = hashlib.sha256(" ".join(_FLAGS).encode())
    for path in sorted(folder.rglob("*")):
        if path.name == "go.mod" or (path.suffix == ".go" and not path.name.endswith("_test.go")):
            total.update(f"\n{path.relative_to(folder)} {path.stat().st_size}\n".encode())
            total.update(path.read_bytes())
    return total.hexdigest()


async def obtain(layout: Layout, code_dir: Path, log: Log, program: str = "agent") -> Agent:
    """Return a program of `code_dir/agent`, building it where the cache has none. Raises CommandError, BuildFailed."""
    source = code_dir / "agent"
    if not (source / "go.mod").is_file():
        raise BuildFailed(f"{source} holds no agent source; run SPACE from its checkout.")
    digest = await asyncio.to_thread(source_digest, source)
    folder = layout.cache_dir / "agent"
    found = Agent(digest, digest[:12], folder / (digest if program == "agent" else f"{program}-{digest}"))
    if found.binary.is_file():
        log(f"{program.capitalize()} {found.version} is there.")
        return found
    if shutil.which("go", path=search_path()) is None:
        raise BuildFailed("Go is not installed: apt-get install golang-go, and build again.")
    files.make_dir(folder, mode=0o700)
    log(f"Building {program} {found.version}.")
    with tempfile.TemporaryDirectory(dir=layout.cache_dir, prefix="tmp-agent-") as name:
        out = Path(name) / "agent"
        await stream(
            log,
            "go", "build", *_FLAGS, f"-ldflags=-s -w -X main.version={found.version}", "-o", str(out),
            f"./cmd/{program}",
            timeout_s=_BUILD_TIMEOUT_S,
            env=_environment(layout, Path(name)),
            cwd=source,
        )  # fmt: skip
        await asyncio.to_thread(files.sync_file, out)
        out.rename(found.binary)
    return found


def _environment(layout: Layout, scratch: Path) -> dict[str, str]:
    return {
        "CGO_ENABLED": "0",
        "GOFLAGS": "-mod=mod",
        "GOPROXY": "off",
        "GOTOOLCHAIN": "local",
        "GOCACHE": str(layout.cache_dir / "go-build"),
        "GOPATH": str(layout.cache_dir / "go"),
        "GOTMPDIR": str(scratch),
        "HOME": str(scratch),
        "GOOS": "linux",
        "GOARCH": "amd64",
    }
