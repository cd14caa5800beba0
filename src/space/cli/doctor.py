"""`space doctor`: what this host has and lacks, each finding with its cure. Exits with 1 where something blocks."""

import asyncio
import dataclasses
from typing import Annotated

import typer

from space.cli import doctor_host, doctor_instance, doctor_kernel, doctor_tls, doctor_uplink, instance, output
from space.cli.finding import Finding, Level
from space.cli.output import Format
from space.cli.up import Data
from space.settings import HostSettings, host_settings


def doctor(
    data: Data = None, out: Annotated[Format, typer.Option("-o", "--output", help="How to print.")] = Format.TABLE
) -> None:
    """Check this host; changes nothing. Exits with 1 when something blocks SPACE."""
    findings = asyncio.run(_examine(host_settings(data_dir=data)))
    if out is Format.JSON:
        output.print_json([dataclasses.asdict(finding) for finding in findings])
    else:
        rows = ((one.level.value, one.what, one.found, one.cure) for one in findings)
        output.print_table(("level", "what", "found", "what to do"), rows)
    raise typer.Exit(1 if any(finding.level is Level.BLOCKER for finding in findings) else 0)


async def _examine(settings: HostSettings) -> list[Finding]:
    """Look at everything, in the order in which it matters."""
    data_dir = settings.data_dir.resolve()
    layout = instance.read(data_dir)
    return [
        *doctor_host.system(),
        *await doctor_kernel.kernel(),
        doctor_kernel.kvm(layout),
        *await doctor_host.programs(),
        *doctor_host.room(data_dir, layout),
        doctor_host.memory(),
        *await doctor_uplink.findings(settings),
        *doctor_tls.findings(settings),
        *doctor_host.isolation(),
        *await doctor_instance.findings(settings, layout),
    ]
