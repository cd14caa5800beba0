"""The range for a session of tests, as the product is, or running from a copy of its code that a test may change."""

import contextlib
import dataclasses
import shutil
import tempfile
from collections.abc import AsyncGenerator, Generator, Mapping
from pathlib import Path

from tests.support.deployment import Deployment
from tests.support.internet import internet
from tests.support.range import CANARY, POLICY, POLICY_B, Range

_ROOT = Path(__file__).parents[2]


@contextlib.asynccontextmanager
async def arena(settings: Mapping[str, str]) -> AsyncGenerator[Range]:
    """A deployment on the tests' internet, with the attacker A and its neighbour B."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        async with internet(Path(folder)) as net:
            space = Deployment(settings={**net.settings, **settings})
            await space.up()
            try:
                status, out, err = await space.cli("template", "build", "base")
                assert status == 0, out + err
                made = Range(space, net)
                await made.keep_secret("KEY", CANARY)
                made.a, made.b = await made.make(POLICY), await made.make(POLICY_B)
                await made.control()
                yield made
            finally:
                await space.down()


@dataclasses.dataclass
class Mutable:
    """A range that runs from the sources in `code`, which may be changed."""

    arena: Range
    code: Path

    async def heal(self) -> None:
        """Bring policies back and see that all is well again."""
        await self.arena.allow(self.arena.a, POLICY)
        await self.arena.restore_b()
        await self.arena.until_both_allowed()


@contextlib.contextmanager
def copied_code() -> Generator[Path]:
    """A copy of the sources that may be changed."""
    with tempfile.TemporaryDirectory() as folder:
        code = Path(folder)
        code.chmod(0o755)
        for name in ("src", "agent"):
            shutil.copytree(_ROOT / name, code / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        yield code


@contextlib.asynccontextmanager
async def mutable_arena() -> AsyncGenerator[Mutable]:
    """The same range, running from a copy of the sources."""
    with copied_code() as code:
        async with arena({"PYTHONPATH": str(code / "src")}) as made:
            yield Mutable(made, code)
