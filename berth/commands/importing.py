"""`berth openstack import placement` copies another Placement's data."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from rich.progress import Progress

from berth.kit.command_groups import Commands
from berth.kit.options import described, option
from berth.kit.running import effective
from berth.kit.terminal import progress_bar, say, write_json
from berth.settings import BadSetting
from control_room.kit.words import several

if TYPE_CHECKING:
    from berth.importing.bring_over import Outcome
    from berth.importing.placement_contents import ContentsDifference
    from berth.kit.placement_client import PlacementClient
    from berth.kit.placement_contents import PlacementContents
from berth.kit.placement_access import check_certificates, placement_url, token_of

_SHOWN = 100  # differences that are listed; more are only counted


commands = Commands()


imports = Commands(name="import", no_args_is_help=True)


commands.add_typer(imports)


@dataclass(frozen=True)
class ImportOptions:
    url: Annotated[str, described("The Placement to read; nothing is written there.", metavar="URL")]
    to: str = option(
        "", "The berth, or other Placement, to write to (default: placement_http).", metavar="URL"
    )
    token_file: Path | None = option(
        None, "With the token for --url (default: $OS_TOKEN, or admin).", metavar="FILE"
    )
    to_token_file: Path | None = option(
        None, "With the token for --to (default: $BERTH_TOKEN, or admin).", metavar="FILE"
    )
    cacert: str = option("", "Certificates to trust in addition to the system's.", metavar="FILE")
    verify: bool = option(False, "Compare both sides afterwards; exit 1 when they differ.")
    dry_run: bool = option(False, "Change nothing; with --verify: only compare.")
    prune: bool = option(False, "Also remove providers and allocations that only --to has.")
    as_json: bool = option(False, "Print one JSON object at the end.", "--json")


@imports.command("placement")
async def placement_command(options: ImportOptions) -> int:
    """Copy a running Placement's data into a running berth; repeat it until OpenStack's services use berth.

    With the two URLs exchanged, the same command carries the contents of a berth back to another Placement.
    """
    from berth.kit.placement_client import PlacementClient

    target_address = effective().settings.placement.http
    if not options.to and not target_address:
        raise BadSetting("give the URL of berth's Placement API with --to, or set placement_http")
    check_certificates(options.cacert)
    token, to_token = token_of(options.token_file, "OS_TOKEN"), token_of(options.to_token_file, "BERTH_TOKEN")
    source = PlacementClient(placement_url("--url", options.url), token, options.cacert)
    target = PlacementClient(
        placement_url("--to", options.to or f"http://{target_address}"), to_token, options.cacert
    )
    async with source, target:
        return await _import(source, target, options, _Report(options.as_json))


async def _import(
    source: "PlacementClient", target: "PlacementClient", options: ImportOptions, report: "_Report"
) -> int:
    from berth.importing.bring_over import TYPED, Import
    from berth.importing.placement_contents import differences, unimportable
    from berth.importing.writers import writer_for

    async def read(bars: Progress) -> "tuple[PlacementContents, PlacementContents]":
        theirs = await source.world(_shown(bars, "there"))
        ours = await target.world(_shown(bars, "here"))
        return theirs if target.minor >= TYPED else theirs.untyped(), ours

    with progress_bar() as bars:
        theirs, ours = await read(bars)
        found = differences(theirs, ours)
        if not options.dry_run:
            writer, progress = await writer_for(target), _shown(bars, "here")
            outcome = await Import(theirs, ours, target, writer, progress).run(options.prune)
    report.read(source, theirs)
    if options.dry_run:
        report.would(found, options.prune, unimportable(theirs, ours, options.prune))
        failed = options.verify and bool(found)
    else:
        report.done(outcome)
        failed = bool(outcome.failed)
        if options.verify:
            with progress_bar() as bars:
                found = differences(*await read(bars))
            failed = failed or bool(found)
    if options.verify:
        report.compared(found)
    report.end()
    return int(failed)


def _shown(bars: Progress, side: str) -> Callable[[str, int, int], None]:
    """Return a progress callback, which draws one bar for each type of objects. The bar's label is the type
    and `side`, such as "providers read there".
    """
    tasks: dict[str, Any] = {}

    def show(counted: str, done: int, total: int) -> None:
        if counted not in tasks:
            tasks[counted] = bars.add_task(f"{counted} {side}", total=total)
        bars.update(tasks[counted], completed=done, total=total)

    return show


class _Report:
    """Prints the result of an import, as sentences or as one JSON object at the end."""

    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json
        self._facts: dict[str, Any] = {}

    def _line(self, text: str, style: str | None = None) -> None:
        if not self._as_json:
            say.print(text, style=style, markup=False)

    def read(self, source: "PlacementClient", theirs: "PlacementContents") -> None:
        counts = {"providers": len(theirs.providers), "consumers": len(theirs.consumers)}
        self._facts["read"] = {"url": source.place, **counts}
        counted = " and ".join(several(count, name[:-1]) for name, count in counts.items())
        self._line(f"read {counted} at {source.place} (version 1.{source.minor})")

    def would(self, found: "list[ContentsDifference]", prune: bool, refused: Mapping[str, str]) -> None:
        wanted, removed = _wanted(found, prune, refused)
        refusals = {difference.id: refused[difference.id] for difference in found if difference.id in refused}
        self._facts["would"] = {**wanted, "remove": removed, "refused": refusals}
        providers, consumers = (
            several(wanted["provider"], "provider"),
            several(wanted["consumer"], "consumer"),
        )
        names = several(wanted["class"] + wanted["trait"], "name")
        self._line(f"would bring over {providers}, {consumers} and {names}, and remove {removed:,}")
        self._refused("would not be brought over", refusals)

    def done(self, outcome: "Outcome") -> None:
        self._facts["done"] = vars(outcome)
        if outcome.nothing:
            self._line("nothing had to be changed")
            return
        parts = (
            (outcome.names, "name", "made"),
            (outcome.made, "provider", "made"),
            (outcome.changed, "provider", "changed"),
            (outcome.dropped, "provider", "removed"),
            (outcome.claimed, "consumer", "brought over"),
            (outcome.released, "consumer", "released"),
        )
        changes = [f"{several(count, name)} {done}" for count, name, done in parts if count]
        self._line(", ".join(changes) or "nothing could be changed")
        self._refused("not brought over", outcome.failed)

    def _refused(self, label: str, failed: Mapping[str, str]) -> None:
        for id_, why in sorted(failed.items()):
            self._line(f"{label}: {id_}: {why}", "red")

    def compared(self, found: "list[ContentsDifference]") -> None:
        self._facts["differences"] = [vars(difference) for difference in found]
        if not found:
            self._line("verified: both sides hold the same", "green")
            return
        self._line(f"verified: {several(len(found), 'difference')}", "red")
        for difference in found[:_SHOWN]:
            self._line(f"  {difference}")
        if len(found) > _SHOWN:
            self._line(f"  and {len(found) - _SHOWN:,} more")

    def end(self) -> None:
        if self._as_json:
            write_json(self._facts)


def _wanted(
    found: "list[ContentsDifference]", prune: bool, refused: Mapping[str, str]
) -> tuple[dict[str, int], int]:
    """Return how many missing or different objects of each type an import would write, except objects in
    `refused`, and how many objects it would remove (0 without `prune`).
    """
    wanted = {kind: len({unlike.id for unlike in found
                         if unlike.what == kind and not unlike.ours_alone and unlike.id not in refused})
              for kind in ("class", "trait", "provider", "consumer")}  # fmt: skip
    return wanted, len({unlike.id for unlike in found if unlike.ours_alone}) if prune else 0
