"""What a sandbox must still know after whatever was done to it: its files, its memory, what ran in it, the time.

A witness writes into its sandbox and keeps the truth on this side. `check` compares everything written so far.
"""

import dataclasses
import hashlib
import random
import time

from tests.support.deployment import Deployment, eventually

COUNTER = "i=0; while :; do i=$((i + 1)); printf '%012d\\n' $i 1<> /dev/shm/count; sleep 0.2; done"
"""Written over without being emptied first, so that no reader finds nothing."""

FOLDER = "/home/user/witness"
_MAX_BYTES = 200_000
_CLOCK_S = 1.0
"""How far the guest's clock may be from ours: what is measured includes a command's way there and back."""


@dataclasses.dataclass(slots=True)
class Witness:
    """The truth about one sandbox. `digests`: SHA-256 by path; `count`: the last value seen of its counter."""

    space: Deployment
    sandbox: str
    rng: random.Random
    digests: dict[str, str] = dataclasses.field(default_factory=dict)
    count: int = 0
    counter: str = ""

    async def begin(self) -> None:
        """Start the counter, in the background of the sandbox."""
        await self.space.output(self.sandbox, f"mkdir -p {FOLDER} /dev/shm/witness")
        self.counter = await self.space.background(self.sandbox, COUNTER)
        await self.goes_on()

    async def write(self) -> None:
        """Write a file from outside and two from inside, on disk and in memory, each of a random size."""
        number = len(self.digests)
        content = self.rng.randbytes(self.rng.randint(0, _MAX_BYTES))
        path = f"{FOLDER}/put-{number}"
        put = await self.space.http.put(f"/v1/sandboxes/{self.sandbox}/files", params={"path": path}, content=content)
        assert put.is_success, put.text
        self.digests[path] = hashlib.sha256(content).hexdigest()
        size = self.rng.randint(1, _MAX_BYTES)
        inside = [f"{FOLDER}/made-{number}", f"/dev/shm/witness/made-{number}"]
        script = f"head -c {size} /dev/urandom | tee {' '.join(inside)} | sha256sum"
        digest = (await self.space.output(self.sandbox, script)).split()[0]
        self.digests |= dict.fromkeys(inside, digest)

    async def check(self) -> None:
        """See that every file is what was written, the counter has gone on since the last look, the clock is right."""
        before = time.time()
        told = await self.space.output(
            self.sandbox, f"date +%s.%N; cat /dev/shm/count; sha256sum {FOLDER}/* /dev/shm/witness/*"
        )
        after = time.time()
        now, count, *lines = told.split("\n")
        found = {path: digest for digest, path in (line.split(maxsplit=1) for line in lines)}
        assert found == self.digests
        assert before - _CLOCK_S <= float(now) <= after + _CLOCK_S, "the guest's clock is wrong"
        assert int(count) > self.count, "the counter went back, or stood still since the last look"
        self.count = int(count)

    async def goes_on(self) -> None:
        """See the counter count."""
        await eventually(self._counts, within_s=30, what="the counter goes on")

    async def _counts(self) -> bool:
        found = int(await self.space.output(self.sandbox, "cat /dev/shm/count 2>/dev/null || true") or 0)
        ahead, self.count = found > self.count, max(found, self.count)
        return ahead
