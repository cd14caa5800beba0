"""Images from a real registry become disks; nothing of them runs here, and not every registry is asked."""

import secrets
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from pydantic import SecretStr
from tests.support import registry

from space.host.command import run
from space.image import oci
from space.image.ext4 import read_superblock
from space.image.oci import Puller, Registries
from space.layout import Layout
from space.model.errors import BuildFailed, InvalidArgument, StorageFull
from space.wire.builds import RegistryLogin

_CONFIG = (
    "--config.env=FOO=bar=baz", "--config.workingdir=/data", "--config.user=service:70",
    "--config.entrypoint=/bin/sleep", "--config.cmd=1000",
)  # fmt: skip
_HTPASSWD = "me:$2b$12$MXE.rtNuXc/2opRMe.01juDP3h1sLzgcWb0nSXJfmaDA6A/IRtJBi\n"
"""The password is `sesame`."""

MIB = 1024**2


@pytest.fixture(scope="module")
def layout(tmp_path_factory: pytest.TempPathFactory) -> Layout:
    found = Layout(tmp_path_factory.mktemp("oci"), "ociz", 0x7000_0000)
    found.disk_area.mkdir()
    return found


@pytest.fixture(scope="module")
async def address(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[str]:
    """A registry with the image `team/app:1`."""
    folder = tmp_path_factory.mktemp("registry")
    async with registry.running(folder) as found:
        await registry.push(await registry.make_image(folder, *_CONFIG), found, "team/app:1")
        yield found


@pytest.fixture
def puller(layout: Layout, address: str, tmp_path: Path) -> Puller:
    work = layout.disk_area / f"work-{secrets.token_hex(4)}"
    work.mkdir(mode=0o700)
    return Puller(layout, Registries.of([f"http://{address}"]), work, lambda _: None)


async def test_an_image_tells_how_it_runs(puller: Puller, address: str) -> None:
    image = await puller.inspect(f"{address}/team/app:1", None)
    assert (image.env, image.user, image.workdir) == ({"FOO": "bar=baz"}, "service", "/data")
    assert image.start == ("/bin/sleep", "1000")
    assert image.digest.startswith("sha256:")
    by_digest = await puller.inspect(str(image.name), None)
    assert by_digest.digest == image.digest


async def test_it_becomes_a_disk_with_its_owners_and_links(puller: Puller, address: str, layout: Layout) -> None:
    image = await puller.inspect(f"{address}/team/app:1", None)
    disk = layout.disk_area / "pulled"
    await puller.pull(image, None, disk, 1024)
    assert read_superblock(disk).size_bytes == 1024 * MIB
    await run("e2fsck", "-f", "-n", str(disk))
    for path, says in {
        "/data/hello": "User:    70   Group:    70",
        "/data/link": 'Fast link dest: "/etc/passwd"',
        "/bin/busybox": "Mode:  0755",
    }.items():
        assert " ".join(says.split()) in " ".join(
            (await run("debugfs", "-R", f"stat {path}", str(disk))).stdout.split()
        )
    assert list(puller._work.iterdir()) == [], "the tree it was made of is gone"
    assert disk.stat().st_uid == 0
    assert disk.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("team/nothing:1", "manifest unknown"),
        ("team/app:2", "manifest unknown"),
    ],
)
async def test_what_is_not_there_is_told(puller: Puller, address: str, name: str, says: str) -> None:
    with pytest.raises(BuildFailed, match=says):
        await puller.inspect(f"{address}/{name}", None)


async def test_what_is_no_name_reaches_no_program(puller: Puller, address: str) -> None:
    for odd in (
        "--help",
        f"{address}/team/app:1 --src-creds=a:b",
        f"{address}/../x",
        "oci:/etc",
        "docker-archive:/etc/x",
    ):
        with pytest.raises((InvalidArgument, BuildFailed), match=r"no name of an image|was not found"):
            await puller.inspect(odd, None)


@pytest.mark.parametrize("named", [[], ["other.example"]])
async def test_a_private_registry_is_asked_only_where_the_operator_says_so(
    puller: Puller, layout: Layout, address: str, named: list[str]
) -> None:
    closed = Puller(layout, Registries.of(named), puller._work, lambda _: None)
    with pytest.raises(BuildFailed, match="SPACE_REGISTRIES"):
        await closed.inspect(f"{address}/team/app:1", None)


async def test_plain_http_is_spoken_only_where_the_operator_says_so(
    puller: Puller, layout: Layout, address: str
) -> None:
    strict = Puller(layout, Registries.of([address]), puller._work, lambda _: None)
    with pytest.raises(BuildFailed, match="plain HTTP"):
        await strict.inspect(f"{address}/team/app:1", None)


def test_addresses_that_are_nobodys_business() -> None:
    for private in (
        "10.1.2.3", "127.0.0.1", "169.254.169.254", "172.16.0.1", "192.168.1.1", "100.64.0.1", "0.0.0.0", "::1",
        "fe80::1%eth0", "fc00::1", "::ffff:10.0.0.1", "::ffff:8.8.8.8", "64:ff9b::a00:1", "2002:a00:1::1",
    ):  # fmt: skip
        assert not oci._public(private), private
    for public in ("8.8.8.8", "2606:4700::1111"):
        assert oci._public(public), public


async def test_a_private_image_needs_its_login(layout: Layout, puller: Puller, tmp_path: Path) -> None:
    (tmp_path / "htpasswd").write_text(_HTPASSWD)
    async with registry.running(tmp_path, tmp_path / "htpasswd") as address:
        made = await registry.make_image(tmp_path, *_CONFIG)
        await registry.push(made, address, "team/secret:1", "--dest-creds=me:sesame")
        asking = Puller(layout, Registries.of([f"http://{address}"]), puller._work, lambda _: None)
        for login in (None, RegistryLogin(username="me", password=SecretStr("wrong"))):
            with pytest.raises(BuildFailed, match=r"unauthorized|authentication"):
                await asking.inspect(f"{address}/team/secret:1", login)
        login = RegistryLogin(username="me", password=SecretStr("sesame"))
        image = await asking.inspect(f"{address}/team/secret:1", login)
        disk = layout.disk_area / "secret"
        await asking.pull(image, login, disk, 1024)
        assert disk.exists()
    assert list(puller._work.iterdir()) == [], "nothing of the login is left"


async def test_an_image_that_fills_the_area_is_given_up(
    puller: Puller, address: str, layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = await puller.inspect(f"{address}/team/app:1", None)
    monkeypatch.setattr(oci, "RESERVE_BYTES", 1 << 50)
    with pytest.raises(StorageFull):
        await puller.pull(image, None, layout.disk_area / "full", 1024)
    assert list(puller._work.iterdir()) == []
    assert not (layout.disk_area / "full").exists()
