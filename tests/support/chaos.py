"""Clients that do things at random to sandboxes while server processes are killed, and a model of what must be true.

What is written is written once, under a name of its own. An answer that it was written means that it is there for good;
without one it is there whole or not at all. The same for sandboxes: an answer counts, its lack leaves both possible.
"""

import asyncio
import base64
import contextlib
import dataclasses
import functools
import hashlib
import json
import random
import signal
from collections.abc import Callable, Coroutine, Mapping

import httpx2
from tests.support.deployment import Deployment, eventually

from space.host import process
from space.host.process import ProcessRef

KILLED = {"worker": 6, "api": 4, "gateway": 2, "ingress": 2, "egress": 1, "edge": 2}
"""Server processes, and how often each is chosen: those that carry out transitions more than those that carry bytes."""

_MOST_SANDBOXES = 8
_MAX_BYTES = 100_000
_TOKEN = "/dev/shm/token"
_REFUSALS: Mapping[int, set[str]] = {
    409: {
        "conflict", "overtaken", "sandbox_busy", "sandbox_creating", "sandbox_deleted", "sandbox_deleting",
        "sandbox_paused", "sandbox_restoring", "sandbox_running", "sandbox_starting", "sandbox_suspended",
        "sandbox_suspending", "template_in_use",
    },
    503: {"no_capacity", "sandbox_unreachable", "unavailable"},
}  # fmt: skip
"""What a client may be told: that it came at the wrong moment, or that a part is just not there. Nothing is broken."""


_IN_DOUBT = {"broken off", "cut off", "unavailable"}
"""Where what was asked for may have been done all the same, or be done later."""


@dataclasses.dataclass(slots=True)
class Subject:
    """A sandbox as the model knows it. `there` and `perhaps`: SHA-256 by path of what it holds and may hold.

    `token` is what its memory holds, `forgotten` whether it may have lost that: it was to be suspended without memory.
    """

    id: str
    there: dict[str, str] = dataclasses.field(default_factory=dict)
    perhaps: dict[str, str] = dataclasses.field(default_factory=dict)
    token: str | None = None
    forgotten: bool = False
    delete_asked: bool = False
    whole: asyncio.Lock = dataclasses.field(default_factory=asyncio.Lock)
    """Held by who writes into it or copies it, so that a copy has what the model says."""

    def copy(self, ident: str, *, memory: bool = True) -> "Subject":
        """Return what a copy of it knows."""
        token = self.token if memory else None
        return Subject(ident, dict(self.there), dict(self.perhaps), token, self.forgotten)


class Unanswered(Exception):
    """The connection broke, or the answer was one of `_REFUSALS`: what was asked for is done, or not, or later."""


@dataclasses.dataclass(slots=True)
class Chaos:
    """One run over a deployment. `label` marks all its sandboxes."""

    space: Deployment
    rng: random.Random
    label: str
    subjects: list[Subject] = dataclasses.field(default_factory=list)
    snapshots: dict[str, Subject] = dataclasses.field(default_factory=dict)
    doomed: list[Subject] = dataclasses.field(default_factory=list)
    """Those whose deletion was asked for; `deleted`: and answered."""

    deleted: set[str] = dataclasses.field(default_factory=set)
    answered: dict[str, int] = dataclasses.field(default_factory=dict)
    refused: dict[str, int] = dataclasses.field(default_factory=dict)
    kills: list[str] = dataclasses.field(default_factory=list)
    _numbers: int = 0

    # -- a run ---------------------------------------------------------------------------------------------------------

    async def run(self, operations: int, kills: int, clients: int) -> None:
        """Let clients do so many operations together; before some of them, a process is killed.

        What was refused does not count.
        """
        kill_at = set(self.rng.sample(range(1, operations), kills))
        begun = 0

        async def client(chosen: random.Random) -> None:
            nonlocal begun
            while begun < operations:
                begun += 1
                if begun in kill_at:
                    kill_at.discard(begun)
                    self._kill(*chosen.choices(list(KILLED), list(KILLED.values())))
                if not await self._one(chosen):
                    begun -= 1

        async with asyncio.TaskGroup() as group:
            for _ in range(clients):
                group.create_task(client(random.Random(self.rng.random())))

    def _kill(self, name: str) -> None:
        record = json.loads((self.space.run_dir / "daemons" / f"{name}.json").read_text())
        watched = process.watch(ProcessRef(record["pid"], record["start_time"]))
        if watched is not None:
            watched.send(signal.SIGKILL)
            watched.release()
            self.kills.append(name)

    async def _one(self, chosen: random.Random) -> bool:
        """Do one thing; False where it was refused, so that nothing was done."""
        acts: list[tuple[int, Callable[[Subject, random.Random], Coroutine[None, None, None]]]] = [
            (22, self._write), (16, self._verify), (12, self._command), (6, self._pause), (8, self._resume),
            (10, self._suspend), (8, self._restore), (5, self._fork), (4, self._snapshot), (6, self._delete),
        ]  # fmt: skip
        if len(self.subjects) < 2 or (len(self.subjects) < _MOST_SANDBOXES and chosen.random() < 0.1):
            act, name = functools.partial(self._create, chosen), "create"
        else:
            (verb,) = chosen.choices([act for _, act in acts], [weight for weight, _ in acts])
            act, name = functools.partial(verb, chosen.choice(self.subjects), chosen), verb.__name__[1:]
        try:
            await act()
            self.answered[name] = self.answered.get(name, 0) + 1
            return True
        except Unanswered as error:
            why = str(error)
        self.refused[why] = self.refused.get(why, 0) + 1
        await self._settle_down(why, chosen)
        return why in _IN_DOUBT

    async def _settle_down(self, why: str, chosen: random.Random) -> None:
        """Do what a client does that was refused: wait for the part that is away, or make room."""
        if why in ("unavailable", "sandbox_unreachable"):
            await eventually(self._ready, within_s=60, what="all parts are back")
        elif why == "no_capacity":
            with contextlib.suppress(Unanswered):
                await self._suspend(chosen.choice(self.subjects), chosen)

    async def _ready(self) -> bool:
        return (await self.space.http.get("/readyz")).is_success

    async def _ask(self, subject: Subject | None, method: str, path: str, **options: object) -> httpx2.Response:
        """Return an answer of success. Raises Unanswered for what may happen, and fails for what must not."""
        while True:
            try:
                answer = await self.space.http.request(method, path, **options)  # type: ignore[arg-type]
                break
            except httpx2.ConnectError:  # the edge is away; nobody has heard of it
                await eventually(self._edge_answers, within_s=60, what="the edge is back")
            except httpx2.TransportError:
                raise Unanswered("broken off") from None
        if answer.is_success:
            return answer
        code = answer.json().get("code")
        gone = answer.status_code == 404 and subject is not None and subject.delete_asked
        assert gone or code in _REFUSALS.get(answer.status_code, ()), f"{method} {path}: {answer.text}"
        raise Unanswered(code)

    async def _edge_answers(self) -> bool:
        return (await self.space.http.get("/healthz")).status_code > 0

    def _number(self) -> int:
        self._numbers += 1
        return self._numbers

    # -- what clients do -----------------------------------------------------------------------------------------------

    async def _create(self, chosen: random.Random) -> None:
        name = chosen.choice([None, None, *self.snapshots])
        source = self.snapshots[name] if name else Subject("")
        wish = {"template": name or "base", "labels": {"chaos": self.label}}
        made = source.copy((await self._ask(None, "POST", "/v1/sandboxes", json=wish)).json()["id"])
        self.subjects.append(made)
        if source.token is None:
            made.token = await self._remember(made)

    async def _remember(self, subject: Subject) -> str | None:
        """Put something into its memory; None where it is not known whether that was done."""
        token = f"token-{self._number()}"
        async with subject.whole:
            try:
                put = {"path": _TOKEN}
                await self._ask(subject, "PUT", f"/v1/sandboxes/{subject.id}/files", params=put, content=token.encode())
            except Unanswered:
                return None
        return token

    async def _write(self, subject: Subject, chosen: random.Random) -> None:
        path = f"/home/user/f{self._number()}"
        content = chosen.randbytes(chosen.randint(0, _MAX_BYTES))
        digest = hashlib.sha256(content).hexdigest()
        async with subject.whole:
            subject.perhaps[path] = digest
            put = {"path": path}
            await self._ask(subject, "PUT", f"/v1/sandboxes/{subject.id}/files", params=put, content=content)
            subject.there[path] = subject.perhaps.pop(path)

    async def _verify(self, subject: Subject, chosen: random.Random) -> None:
        if subject.there:
            path, digest = chosen.choice(list(subject.there.items()))
            answer = await self._ask(subject, "GET", f"/v1/sandboxes/{subject.id}/files", params={"path": path})
            assert hashlib.sha256(answer.content).hexdigest() == digest, f"{path} of {subject.id} is not what it was"

    async def _command(self, subject: Subject, chosen: random.Random) -> None:
        wish = {"cmd": f"cat {_TOKEN} 2>/dev/null; echo .", "timeout_s": 60}
        token, forgotten = subject.token, subject.forgotten
        answer = await self._ask(subject, "POST", f"/v1/sandboxes/{subject.id}/commands", json=wish)
        lines = [json.loads(line) for line in answer.text.splitlines()]
        if not lines or lines[-1]["type"] != "exit":
            raise Unanswered("cut off")
        if token is not None and not forgotten and not subject.forgotten:
            said = b"".join(base64.b64decode(line["data"]) for line in lines if line["type"] == "stdout")
            assert said.decode() == f"{token}.\n", f"{subject.id} is another machine: {lines}"

    async def _order(self, subject: Subject, verb: str, **body: object) -> httpx2.Response:
        return await self._ask(subject, "POST", f"/v1/sandboxes/{subject.id}/{verb}", json=body)

    async def _pause(self, subject: Subject, _: random.Random) -> None:
        await self._order(subject, "pause")

    async def _resume(self, subject: Subject, _: random.Random) -> None:
        await self._order(subject, "resume")

    async def _restore(self, subject: Subject, _: random.Random) -> None:
        await self._order(subject, "restore")

    async def _suspend(self, subject: Subject, chosen: random.Random) -> None:
        memory = chosen.random() < 0.8
        subject.forgotten = subject.forgotten or not memory
        await self._order(subject, "suspend", memory=memory)

    async def _fork(self, subject: Subject, _: random.Random) -> None:
        if len(self.subjects) >= _MOST_SANDBOXES:
            return
        async with subject.whole:
            results = (await self._order(subject, "fork", labels={"chaos": self.label})).json()["results"]
            self.subjects += [subject.copy(result["sandbox"]["id"]) for result in results]

    async def _snapshot(self, subject: Subject, chosen: random.Random) -> None:
        name, memory = f"chaos-{self.label}-{self._number()}", chosen.random() < 0.5
        async with subject.whole:
            await self._order(subject, "snapshots", name=name, memory=memory)
            self.snapshots[name] = subject.copy("", memory=memory)

    async def _delete(self, subject: Subject, _: random.Random) -> None:
        subject.delete_asked = True
        with contextlib.suppress(ValueError):
            self.subjects.remove(subject)
            self.doomed.append(subject)
        await self._ask(subject, "DELETE", f"/v1/sandboxes/{subject.id}")
        self.deleted.add(subject.id)

    # -- the end -------------------------------------------------------------------------------------------------------

    async def check(self, subject: Subject) -> None:
        """See that a sandbox that runs holds what was written, whole, and nothing that is not what was written."""
        if not {**subject.there, **subject.perhaps}:
            return
        told = await self.space.output(subject.id, "cd /home/user; touch none; sha256sum none $(ls | grep ^f)")
        found = {f"/home/user/{path}": digest for digest, path in (line.split() for line in told.split("\n"))}
        del found["/home/user/none"]
        lost = subject.there.items() - found.items()
        assert not lost, f"{subject.id} has lost {lost}"
        odd = found.items() - {**subject.there, **subject.perhaps}.items()
        assert not odd, f"{subject.id} holds what nobody wrote: {odd}"
