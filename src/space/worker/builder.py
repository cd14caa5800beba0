"""Builds templates from steps: what no layer is kept of runs in a machine of the build's own.

    source -> layer of step 1 -> ... -> layer of step n -> finished disk -> template, booted, warmed and frozen

The longest run of steps whose layers are kept is skipped; one machine does all that are left. A build is one task that
ends with its reader: on any way out its machine is gone, and of layers and templates there are only whole ones.
"""

import asyncio
import contextlib
import dataclasses
import datetime as dt
import hashlib
import tempfile
import uuid
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path

from space.disk import chunks, rootfs, uploads
from space.disk.layers import HALF_MADE, Layers
from space.host import files
from space.host.command import CommandError
from space.host.room import check_room
from space.image import build as recipes
from space.image import catalog
from space.image.build import Parts
from space.image.catalog import BootFiles, Defaults
from space.image.oci import Puller, Registries
from space.image.work import explained
from space.model import build as model
from space.model.build import BASE, FINALIZE, State, Step
from space.model.errors import BuildFailed, NotFound, SpaceError
from space.model.ids import TemplateDigest
from space.telemetry import logger
from space.wire.builds import BuildSteps, FromImage, FromTemplate, Level, StepLine, StepsDone, StepsFailed, failed_line
from space.wire.templates import TemplateModel
from space.worker import build_source, build_vm
from space.worker.admission import Admission
from space.worker.build_journal import Journal
from space.worker.build_source import Source
from space.worker.build_vm import BuildVm, Machine
from space.worker.guest_vm import Died
from space.worker.host import Host
from space.worker.stock import Stock

log = logger()
AT_ONCE = 2
"""Builds that are done at the same time; more wait. Each takes a core, and sandboxes are to be quick meanwhile."""

_ROOM_BYTES = 512 * 1024**2


@dataclasses.dataclass(frozen=True, slots=True)
class _Planned:
    """A step, the state before and after it, and the key of its layer."""

    step: Step
    before: State
    after: State
    key: str

    @property
    def changes_disk(self) -> bool:
        """Whether there is anything to do in the machine."""
        return model.changes_disk(self.before, self.step)


class Builder:
    """The builds of a host."""

    def __init__(self, host: Host, stock: Stock, admission: Admission, code_dir: Path, registries: Registries) -> None:
        self.host, self.stock, self.admission, self.code_dir = host, stock, admission, code_dir
        self.registries = registries
        self.layers = Layers(host.layout)
        self._turns = asyncio.Semaphore(AT_ONCE)

    async def build(self, wish: BuildSteps) -> AsyncGenerator[StepLine]:
        """Build and yield the log, last `done` or `failed`. Close it (`contextlib.aclosing`) to end the build."""
        journal = Journal()
        ended = False
        async with asyncio.TaskGroup() as group:
            work = group.create_task(self._job(wish, journal))
            try:
                while not ended:
                    line = await journal.next()
                    ended = isinstance(line, StepsDone | StepsFailed)
                    yield line
            except GeneratorExit:  # the reader has left; raised on, the group would wrap it and `aclose` fail
                pass
            finally:
                work.cancel()

    async def _job(self, wish: BuildSteps, journal: Journal) -> None:
        """Build, and put the end into the journal, whatever it is."""
        try:
            if self._turns.locked():
                journal.log("Waiting for other builds to end.")
            async with self._turns, self.admission.reserved(f"build-{uuid.uuid4()}", wish.memory_mib):
                done = await _Build(self, wish, journal).run()
        except (OSError, CommandError) as error:
            journal.end(failed_line(explained(journal.step, error, self.host.layout.data_dir), journal.step))
        except Died as error:
            log.warning("build_machine_died", step=journal.step, cause=str(error), console=error.console)
            told = f"The build's machine ended during this step: {error}."
            journal.end(failed_line(BuildFailed(told), journal.step))
        except SpaceError as error:
            log.info("build_failed", step=journal.step, error=str(error))
            journal.end(failed_line(error, journal.step))
        except Exception:
            log.exception("build_crashed", step=journal.step)
            journal.end(failed_line(SpaceError("Internal error; see the worker's log."), journal.step))
        else:
            journal.end(done)


class _Build:
    """One build."""

    def __init__(self, builder: Builder, wish: BuildSteps, journal: Journal) -> None:
        self._host, self._stock, self._layers = builder.host, builder.stock, builder.layers
        self._code_dir, self._registries = builder.code_dir, builder.registries
        self._wish, self._journal = wish, journal
        self._layout = builder.host.layout

    async def run(self) -> StepsDone:
        wish, journal = self._wish, self._journal
        parts = await recipes.boot_parts(self._layout, self._code_dir)
        await self._layers.trim()
        check_room(self._layout.disk_area, _ROOM_BYTES, "A build")
        with tempfile.TemporaryDirectory(dir=self._layout.disk_area, prefix=HALF_MADE) as work:
            source = await self._source(parts, Path(work))
            journal.begin(BASE, source.says)
            first = model.first_key(wish.scope, source.key)
            plan = self._plan(first, source.state)
            state = plan[-1].after if plan else source.state
            size = f"{parts.kernel.digest} {parts.agent.digest} {self._host.vmm} {wish.vcpus} {wish.memory_mib}"
            start = wish.start or source.start
            done_key = model.last_key(plan[-1].key if plan else first, state, start, wish.ready, size)
            forced = wish.force or any(one.step.force for one in plan)
            template = None if forced else self._known(done_key)
            cached = template is not None
            if template is None:
                disk = await self._do(source, first, plan, Path(work), parts)
                template = await self._publish(disk, Path(work), source, state, parts)
                await self._layers.note(done_key, template)
            else:
                for number, one in enumerate(plan, 1):
                    journal.begin(str(number), f"CACHED [{number}/{len(plan)}] {one.step}")
            return await self._finished(template, cached=cached)

    async def _source(self, parts: Parts, work: Path) -> Source:
        wish = self._wish
        if isinstance(wish.source, FromTemplate):
            return build_source.of_template(self._host, self._stock.shelf, wish, wish.source.digest, parts)
        image = await self._puller(work).inspect(wish.source.reference, wish.source.login)
        return build_source.of_image(image, container=wish.source.container)

    def _puller(self, work: Path) -> Puller:
        return Puller(self._layout, self._registries, work, self._journal.log)

    def _plan(self, key: str, state: State) -> list[_Planned]:
        """Return the steps with what each goes by. Raises InvalidArgument; then `step` is the one."""
        plan = []
        for number, given in enumerate(self._wish.steps, 1):
            self._journal.step = str(number)
            step = given.to_step()
            following = model.after(state, step)
            key = model.next_key(key, state, step)
            plan.append(_Planned(step, state, following, key))
            state = following
        self._journal.step = BASE
        return plan

    def _known(self, done_key: str) -> str | None:
        """Return the template that the same build has made before, where it is still here."""
        facts = self._layers.facts(done_key)
        if facts is None or facts.template is None:
            return None
        try:
            catalog.find(self._layout, TemplateDigest(facts.template))
        except NotFound:
            return None
        return facts.template

    def _kept(self, plan: Sequence[_Planned]) -> int:
        """Return how many steps need not be done: the last of them has a layer, and none is forced."""
        kept = 0
        for number, one in enumerate(plan, 1):
            if self._wish.force or one.step.force:
                break
            if one.changes_disk and self._layers.has_disk(one.key):
                kept = number
        return kept

    async def _do(self, source: Source, first: str, plan: Sequence[_Planned], work: Path, parts: Parts) -> Path:
        """Do the steps of which no layer is kept, and return the finished disk."""
        journal, total = self._journal, len(plan)
        kept = self._kept(plan)
        for number, one in enumerate(plan[:kept], 1):
            journal.begin(str(number), f"CACHED [{number}/{total}] {one.step}")
        disk, bare = await self._begin_with(source, plan[kept - 1].key if kept else None, first, work)
        frozen = None if kept else source.frozen
        machine = Machine(
            files=source.files if frozen and source.files else BootFiles(parts.kernel.vmlinuz, parts.initrd),
            vcpus=source.vcpus or self._wish.vcpus,
            memory_mib=source.memory_mib or self._wish.memory_mib,
            egress=self._wish.egress,
        )
        before = disk.stat().st_blocks
        finished = work / catalog.ROOTFS
        async with build_vm.up(self._host, machine, disk, frozen) as vm:
            if bare:
                await vm.furnish(source.state.user)
                before = await self._keep(vm, first, work / "layer", 0)
            for number, one in enumerate(plan[kept:], kept + 1):
                journal.begin(str(number), f"[{number}/{total}] {one.step}")
                if one.changes_disk:
                    await vm.do(one.step, one.before, one.after, self._archive(one.step), self._said)
                    before = await self._keep(vm, one.key, work / "layer", before)
            journal.begin(FINALIZE, "Finishing: writing what the template starts with.")
            await self._tell_room(vm)
            state = plan[-1].after if plan else source.state
            await vm.finish(state, self._wish.start or source.start, self._wish.ready)
            await vm.copy_disk(finished)
        return finished

    async def _begin_with(self, source: Source, kept: str | None, first: str, work: Path) -> tuple[Path, bool]:
        """Return the disk to go on from, and whether it is one that was made for containers."""
        disk = work / "parent"
        if kept is not None:
            await self._layers.take(kept, disk)
            return disk, False
        if source.disk is not None:
            return source.disk, False
        if not self._wish.force and self._layers.has_disk(first):
            self._journal.log("The image is here already.")
            await self._layers.take(first, disk)
            return disk, False
        assert source.image is not None
        assert isinstance(self._wish.source, FromImage)
        await self._puller(work).pull(source.image, self._wish.source.login, disk, source.disk_mib)
        return disk, True

    def _archive(self, step: Step) -> Path | None:
        """Return what a step copies from. Raises NotFound where it was not uploaded, or has been removed since."""
        return None if step.files is None else uploads.find(self._layout, self._wish.scope, step.files)[0]

    async def _keep(self, vm: BuildVm, key: str, fresh: Path, before: int) -> int:
        """Keep the machine's disk as a layer; returns its blocks."""
        await vm.copy_disk(fresh)
        blocks = fresh.stat().st_blocks
        await self._layers.keep(key, fresh, max(0, blocks - before) * 512)
        return blocks

    def _said(self, text: str, error: bool) -> None:
        level: Level = "warn" if error else "info"
        self._journal.output(text, level)

    async def _tell_room(self, vm: BuildVm) -> None:
        if self._wish.min_free_mib:
            free = await vm.free_mib()
            if free is not None and free < self._wish.min_free_mib:
                self._journal.log(
                    f"The disk has {free} MiB free, not the {self._wish.min_free_mib} MiB that were asked for; disks "
                    "do not grow. Build on a template with a larger disk.",
                    "warn",
                )

    async def _publish(self, disk: Path, work: Path, source: Source, state: State, parts: Parts) -> str:
        """Make a template of a finished disk, which is used up; returns its digest. One content has one digest."""
        content = (await asyncio.to_thread(chunks.take, disk))[0].digest
        wish = self._wish
        inputs: dict[str, str | int] = {
            "disk": content, "kernel": parts.kernel.digest, "agent": parts.agent.digest, "vmm": self._host.vmm,
            "vcpus": wish.vcpus, "memory_mib": wish.memory_mib, "source": source.key,
        }  # fmt: skip
        text = " ".join(f"{name}={value}" for name, value in sorted(inputs.items()))
        digest = TemplateDigest(f"sha256:{hashlib.sha256(text.encode()).hexdigest()}")
        with contextlib.suppress(NotFound):
            return catalog.find(self._layout, digest).template.digest
        fresh = work / "template"
        files.make_dir(fresh, mode=0o711)
        await rootfs.reflink(disk, fresh / catalog.ROOTFS)
        files.reflink(parts.kernel.vmlinuz, fresh / catalog.KERNEL, mode=0o644)
        files.reflink(parts.initrd, fresh / catalog.INITRD, mode=0o644)
        manifest = catalog.Manifest(
            digest=digest,
            name=wish.name,
            disk_mib=source.disk_mib,
            used_bytes=disk.stat().st_blocks * 512,
            kernel_release=parts.kernel.release,
            agent_version=parts.agent.version,
            vmm=self._host.vmm,
            built_at=dt.datetime.now(dt.UTC),
            build_s=0,
            inputs=inputs,
            vcpus=wish.vcpus,
            memory_mib=wish.memory_mib,
            defaults=Defaults(user=state.user, workdir=state.workdir, env=dict(state.env)),
            starts=source.starts or bool(wish.start or source.start),
        )
        await asyncio.to_thread(catalog.finish, fresh, manifest)
        catalog.publish(self._layout, fresh, digest)
        return digest

    async def _finished(self, digest: str, *, cached: bool) -> StepsDone:
        """Have a published template booted, made ready, warmed and frozen; one that does not come up is removed."""
        wish = self._wish
        self._journal.begin(FINALIZE, "Finishing: booting, warming and freezing the template.")
        try:
            await self._stock.shelf.make(digest, wish.vcpus, wish.memory_mib, ready_s=wish.ready_timeout_s)
        except BaseException:
            if not cached:
                await asyncio.to_thread(catalog.remove, self._layout, TemplateDigest(digest))
            raise
        template = dataclasses.replace(catalog.find(self._layout, TemplateDigest(digest)).template, name=wish.name)
        self._journal.log(f"Template {digest} is ready.")
        return StepsDone(template=TemplateModel.of(template), cached=cached)
