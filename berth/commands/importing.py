"""`berth import placement`: options and output."""

import os
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars

from berth.commands.options import Commands
from berth.commands.terminal import complain, effective, run, say, write_json
from berth.settings import BadSetting
from bus.masking import masked

if TYPE_CHECKING:  # httpx takes long to load, and no other command needs it
    from berth.importing.bring_over import Outcome
    from berth.importing.client import PlacementClient
    from berth.importing.placement_contents import ContentsDifference, PlacementContents

_SHOWN = 100  # differences, before the rest is only counted

Url = Annotated[str, typer.Option(metavar="URL", help="The Placement to read; nothing is written there.")]
To = Annotated[
    str, typer.Option(metavar="URL", help="The berth to write to (default: where placement_http says).")
]
TokenFile = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Holds the token for --url (default: $OS_TOKEN, or admin)."),
]
ToTokenFile = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Holds the token for --to (default: $BERTH_TOKEN, or admin)."),
]
CaCert = Annotated[str, typer.Option(metavar="FILE", help="Certificates to trust besides the usual ones.")]
Verify = Annotated[
    bool, typer.Option("--verify", help="Compare both sides afterwards; exit 1 when they differ.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Change nothing; with --verify: only compare.")]
Prune = Annotated[
    bool, typer.Option("--prune", help="Also remove providers and allocations that only berth has.")
]

AsJson = Annotated[bool, typer.Option("--json", help="Say it as JSON: one object, when all is over.")]


commands = Commands()
imports = Commands(name="import", no_args_is_help=True, help="Bring over what another service knows.")
commands.add_typer(imports)


@imports.callback()
def import_() -> None:
    """Bring over what another service knows."""


@dataclass(frozen=True)
class ImportOptions:
    """The options of berth import placement."""

    url: Url
    to: To = ""
    token_file: TokenFile = None
    to_token_file: ToTokenFile = None
    cacert: CaCert = ""
    verify: Verify = False
    dry_run: DryRun = False
    prune: Prune = False
    as_json: AsJson = False


@imports.command("placement")
def placement_command(options: ImportOptions) -> None:
    """Copy a running Placement into a running berth; again and again, until the switch."""
    from berth.importing.client import PlacementClient

    here = effective().settings.placement.http
    if not options.to and not here:
        raise BadSetting("say with --to where berth's Placement API is, or set placement_http")
    _check_certificates(options.cacert)
    source = PlacementClient(
        _url("--url", options.url), _token(options.token_file, "OS_TOKEN"), options.cacert
    )
    target = PlacementClient(
        _url("--to", options.to or f"http://{here}"),
        _token(options.to_token_file, "BERTH_TOKEN"),
        options.cacert,
    )
    told = _AsJson() if options.as_json else _InWords(say)
    run(_import(source, target, options.verify, options.dry_run, options.prune, told))


def _url(flag: str, given: str) -> str:
    if not given.startswith(("http://", "https://")):
        raise BadSetting(f"{flag} takes an address as http://127.0.0.1:8778, not {masked(given)!r}")
    return given


def _check_certificates(file: str) -> None:
    try:
        ssl.create_default_context(cafile=file or None)
    except ssl.SSLError:
        raise BadSetting(f"--cacert {file}: there is no certificate in it") from None
    except OSError as problem:
        raise BadSetting(f"--cacert {file}: cannot be read: {problem.strerror}") from None


def _token(file: Path | None, variable: str) -> str:
    if file is None:
        return os.environ.get(variable, "admin")
    try:
        return file.read_text(encoding="utf-8").strip()
    except OSError as problem:
        raise BadSetting(f"{file}: {problem.strerror}") from None
    except UnicodeDecodeError:
        raise BadSetting(f"{file}: holds no token, it is not text") from None


async def _import(
    source: "PlacementClient",
    target: "PlacementClient",
    verify: bool,
    dry_run: bool,
    prune: bool,
    told: "_InWords | _AsJson",
) -> int:
    from berth.importing.bring_over import Import
    from berth.importing.placement_contents import differences, unimportable

    async with source, target:
        with _Shown(complain) as shown:
            theirs = await source.world(shown.under("there"))
            ours = await target.world(shown.under("here"))
            found = differences(theirs, ours)
            if not dry_run:
                outcome = await Import(theirs, ours, target, shown.under("here")).run(prune)
        told.read(source, theirs)
        if dry_run:
            told.would(found, prune, unimportable(theirs, ours, prune))
            if not verify:
                return told.ends(0)
            told.compared(found)
            return told.ends(1 if found else 0)
        told.done(outcome)
        failed = 1 if outcome.failed else 0
        if verify:
            with _Shown(complain) as shown:
                theirs = await source.world(shown.under("there"))
                ours = await target.world(shown.under("here"))
            told.compared(left := differences(theirs, ours))
            failed = 1 if left else failed
        return told.ends(failed)


class _Shown:
    """Progress bars of an import on standard error, in a terminal."""

    def __init__(self, console: Console) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._bars = Bars(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._known: dict[str, Any] = {}

    def __enter__(self) -> "_Shown":
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def under(self, side: str) -> Callable[[str, int, int], None]:
        def show(what: str, done: int, total: int) -> None:
            name = f"{what} {side}"
            if name not in self._known:
                self._known[name] = self._bars.add_task(name, total=total)
            self._bars.update(self._known[name], completed=done, total=total)

        return show


class _InWords:
    """Prints the result of an import for people."""

    def __init__(self, say: Console) -> None:
        self._say = say

    def read(self, source: "PlacementClient", theirs: "PlacementContents") -> None:
        self._say.print(
            f"read {_some(theirs.providers, 'provider')} and {_some(theirs.consumers, 'consumer')}"
            f" at {source.place} (version 1.{source.minor})",
            markup=False,
        )

    def would(self, found: "list[ContentsDifference]", prune: bool, refused: Mapping[str, str]) -> None:
        wanted, gone = _wanted(found, prune, refused)
        providers, consumers = _some(wanted["provider"], "provider"), _some(wanted["consumer"], "consumer")
        names = _some(wanted["class"] + wanted["trait"], "name")
        self._say.print(
            f"would bring over {providers}, {consumers} and {names}, and remove {gone:,}", markup=False
        )
        self._refused(
            "would not be brought over", {one.id: refused[one.id] for one in found if one.id in refused}
        )

    def done(self, outcome: "Outcome") -> None:
        if outcome.nothing:
            self._say.print("nothing had to be changed")
            return
        parts = (
            (outcome.names, "{} made", "name"),
            (outcome.made, "{} made", "provider"),
            (outcome.changed, "{} changed", "provider"),
            (outcome.dropped, "{} removed", "provider"),
            (outcome.claimed, "{} brought over", "consumer"),
            (outcome.released, "{} released", "consumer"),
        )
        told = ", ".join(form.format(_some(count, name)) for count, form, name in parts if count)
        self._say.print(told or "nothing could be changed", markup=False)
        self._refused("not brought over", outcome.failed)

    def _refused(self, what: str, failed: Mapping[str, str]) -> None:
        for id_, why in sorted(failed.items()):
            self._say.print(f"{what}: {id_}: {why}", style="red", markup=False)

    def compared(self, found: "list[ContentsDifference]") -> None:
        if not found:
            self._say.print("verified: both sides hold the same", style="green")
            return
        self._say.print(f"verified: {_some(found, 'difference')}", style="red", markup=False)
        for one in found[:_SHOWN]:
            self._say.print(f"  {one}", markup=False)
        if len(found) > _SHOWN:
            self._say.print(f"  and {len(found) - _SHOWN:,} more", markup=False)

    def ends(self, code: int) -> int:
        return code


class _AsJson:
    """Prints the result of an import as one JSON object."""

    def __init__(self) -> None:
        self._facts: dict[str, Any] = {}

    def read(self, source: "PlacementClient", theirs: "PlacementContents") -> None:
        counts = {"providers": len(theirs.providers), "consumers": len(theirs.consumers)}
        self._facts["read"] = {"url": source.place, **counts}

    def would(self, found: "list[ContentsDifference]", prune: bool, refused: Mapping[str, str]) -> None:
        wanted, gone = _wanted(found, prune, refused)
        refusals = {one.id: refused[one.id] for one in found if one.id in refused}
        self._facts["would"] = {**wanted, "remove": gone, "refused": refusals}

    def done(self, outcome: "Outcome") -> None:
        self._facts["done"] = vars(outcome)

    def compared(self, found: "list[ContentsDifference]") -> None:
        self._facts["differences"] = [vars(one) for one in found]

    def ends(self, code: int) -> int:
        write_json(self._facts)
        return code


def _some(things: Any, name: str) -> str:
    count = things if isinstance(things, int) else len(things)
    return f"{count:,} {name}{'' if count == 1 else 's'}"


def _wanted(
    found: "list[ContentsDifference]", prune: bool, refused: Mapping[str, str]
) -> tuple[dict[str, int], int]:
    """Return the number of objects to import by type, and the number to remove."""
    wanted = {what: len({one.id for one in found
                         if one.what == what and not one.ours_alone and one.id not in refused})
              for what in ("class", "trait", "provider", "consumer")}  # fmt: skip
    return wanted, len({one.id for one in found if one.ours_alone}) if prune else 0
