"""A registry of images on loopback, and a small image to put into it."""

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import httpx2
from tests.support.deployment import eventually, free_port

from space.host.command import run

_CONFIG = """\
version: 0.1
log: {{level: error}}
storage: {{filesystem: {{rootdirectory: {root}}}}}
http: {{addr: "127.0.0.1:{port}"}}
{auth}"""


@contextlib.asynccontextmanager
async def running(folder: Path, password_file: Path | None = None) -> AsyncIterator[str]:
    """Run a registry that keeps its images in `folder`; gives its `host:port`. It speaks plain HTTP."""
    port = free_port()
    auth = f"auth: {{htpasswd: {{realm: test, path: {password_file}}}}}\n" if password_file else ""
    config = folder / "registry.yml"
    config.write_text(_CONFIG.format(root=folder / "images", port=port, auth=auth))
    process = await asyncio.create_subprocess_exec(
        "docker-registry", "serve", str(config), stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL
    )
    try:
        async with httpx2.AsyncClient(trust_env=False) as http:

            async def up() -> bool:
                return (await http.get(f"http://127.0.0.1:{port}/v2/")).status_code in (200, 401)

            await eventually(up, within_s=30, what="the registry answers")
        yield f"127.0.0.1:{port}"
    finally:
        process.kill()
        await process.wait()


async def make_image(folder: Path, *config: str) -> Path:
    """Make an OCI layout with one image `made`: a shell, and a file of a user of its own; `config` is for umoci."""
    layout, bundle = folder / "layout", folder / "bundle"
    image = f"{layout}:made"
    await run("umoci", "init", "--layout", str(layout))
    await run("umoci", "new", "--image", image)
    await run("umoci", "unpack", "--image", image, str(bundle))
    root = bundle / "rootfs"
    for name in ("bin", "etc", "data"):
        (root / name).mkdir()
    shutil.copy("/bin/busybox", root / "bin/busybox")
    for name in ("sh", "cat", "echo", "id", "ls", "sleep", "test", "touch", "true", "df", "tail"):
        (root / "bin" / name).symlink_to("busybox")
    (root / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\nservice:x:70:70::/data:/bin/sh\n")
    (root / "data/hello").write_text("hello\n")
    shutil.chown(root / "data/hello", 70, 70)
    (root / "data/link").symlink_to("/etc/passwd")
    await run("umoci", "repack", "--image", image, str(bundle))
    await run("umoci", "config", "--image", image, *config)
    return layout


async def push(layout: Path, registry: str, name: str, *options: str) -> None:
    """Put the image into a registry under a name."""
    await run(
        "skopeo", "copy", "--dest-tls-verify=false", *options, f"oci:{layout}:made", f"docker://{registry}/{name}",
        timeout_s=60,
    )  # fmt: skip
