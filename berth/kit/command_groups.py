"""Registers functions as commands: coroutines, and functions that take dataclasses of options."""

import dataclasses
import inspect
from collections.abc import Callable
from typing import Annotated, Any, TypeVar, get_args, get_type_hints

import typer
from typer.core import TyperCommand

from berth.kit.dry_run import DRY_RUN, ActCli
from berth.kit.listing import FORMS, WATCH_SECONDS, ListCli, Listing, repeated
from berth.kit.options import OptionsOf, _keyword, _plain, described
from berth.kit.running import effective, run
from berth.kit.terminal import Cli, say
from berth.settings import BadSetting

F = TypeVar("F", bound=Callable[..., Any])


StateDir = Annotated[str | None, described("Where the embedded berth keeps its state (default: .berth).")]


Json = Annotated[bool, described("Print JSON.", "--json")]


LISTS = "The list"  # panel of the options that all lists have


Form = Annotated[str, described("`json` prints JSON.", "--output", "-o", metavar="table|json", hidden=True)]


ListForm = Annotated[
    str,
    described(
        "The form: `wide` has more columns, `name` only the first, to be read by another command.",
        "--output", "-o", metavar="|".join(FORMS), panel=LISTS,
    ),
]  # fmt: skip


Columns = Annotated[str, described("Only these columns: host,state.", metavar="TITLE,...", panel=LISTS)]


Sort = Annotated[
    str, described("Sort by a column; with a minus, the highest first.", metavar="[-]TITLE", panel=LISTS)
]


Watch = Annotated[
    bool, described(f"List again every {WATCH_SECONDS:g} seconds, until Ctrl-C.", "--watch", panel=LISTS)
]


DryRun = Annotated[bool, described(DRY_RUN, "--dry-run")]


class WaitingCommand(TyperCommand):
    """A command with the option `--wait`, alone or with a time: `--wait 30m` allows a wait for capacity."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]
        """Read `--wait` without a time as `--wait=`, so that the next word is not taken for its time."""
        from berth.kit.times import is_time

        completed = []
        for position, arg in enumerate(args):
            after = args[position + 1] if position + 1 < len(args) else ""
            completed.append("--wait=" if arg == "--wait" and not is_time(after) else arg)
        return super().parse_args(ctx, completed)


class Commands(typer.Typer):
    """A group of commands with functions that may be coroutines and may take dataclasses of options."""

    def command(self, name: str, **options: Any) -> Callable[[F], F]:  # type: ignore[override]
        """Register a command. Parameters of option classes become the options that these classes list."""
        register = super().command(name, **options)

        def registered(function: F) -> F:
            register(_expanded(function))
            return function

        return registered


def _expanded(function: Callable[..., Any]) -> Callable[..., None]:
    """Return a function for typer with one parameter for each field of the command's dataclass parameters.

    `Annotated[Class, {field: typer.Option(…)}]` describes the fields of a dataclass without descriptions;
    fields that the mapping lacks are omitted. A parameter of type `Cli` becomes the options --json and
    --state-dir; one of type `ListCli` also those of lists, one of type `ActCli` also --dry-run.
    `Annotated[Cli, help]` sets the help of --json; a second annotation omits --state-dir.
    """
    parameters: list[inspect.Parameter] = []
    last: list[inspect.Parameter] = []
    lists = False  # whether the command lists
    records: dict[str, tuple[Any, tuple[str, ...]]] = {}
    several: dict[tuple[str, str], OptionsOf] = {}  # parameter and field → its dataclasses
    hints = get_type_hints(function, include_extras=True)
    for name, parameter in inspect.signature(function).parameters.items():
        hint = hints[name]
        class_, *about = get_args(hint) if hasattr(hint, "__metadata__") else (hint,)
        if class_ in _MAKERS:
            lists = class_ is ListCli
            json = Annotated[bool, described(about[0], "--json")] if about else Json
            last = [*_LIST_OPTIONS] if lists else [_keyword("output", Form, "")]
            last += [_keyword("dry_run", DryRun, False)] if class_ is ActCli else []
            last += [_keyword("as_json", json, False), _keyword("state_dir", StateDir, None)]
            last = last[:-1] if len(about) > 1 else last
            records[name] = (
                _MAKERS[class_],
                (*(option.name for option in last if option.name != "watch"), "context"),
            )
            if "context" not in hints:
                last.append(
                    inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)
                )
        elif dataclasses.is_dataclass(class_):
            descriptions: dict[str, Any] = about[0] if about else {}
            types = get_type_hints(class_, include_extras=True)
            nested = {each: about for each, about in descriptions.items() if isinstance(about, OptionsOf)}
            fields = [
                _keyword(field.name, types[field.name], field, descriptions.get(field.name))
                for field in dataclasses.fields(class_)
                if field.name not in nested and (not descriptions or field.name in descriptions)
            ]
            records[name] = class_, tuple(field.name for field in fields)
            several |= {(name, each): options for each, options in nested.items()}
            parameters += [*fields, *(keyword for each in nested.values() for keyword in each.keywords())]
        else:
            parameters.append(_keyword(name, hint, parameter.default))
    function.__defaults__ = tuple(_plain(default) for default in function.__defaults__ or ())

    def command(**given: Any) -> None:
        watches = lists and given.pop("watch")
        for name, (class_, fields) in records.items():
            values = {field: given[field] if field in hints else given.pop(field) for field in fields}
            values |= {field: each.made(given) for (of, field), each in several.items() if of == name}
            given[name] = class_(**{field: value for field, value in values.items() if value is not None})
        if watches:
            run(repeated(lambda: function(**given)))
        work = function(**given)
        if inspect.iscoroutine(work):
            run(work)

    command.__doc__, command.__name__ = function.__doc__, function.__name__
    command.__module__ = function.__module__
    command.__signature__ = inspect.Signature([*parameters, *last])  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in (*parameters, *last)}
    return command


_LIST_OPTIONS = (
    _keyword("output", ListForm, ""),
    _keyword("columns", Columns, ""),
    _keyword("sort", Sort, ""),
    _keyword("watch", Watch, False),
)


def _cli(as_json: bool, output: str, context: typer.Context, state_dir: str | None = None) -> Cli:
    if output not in {"", "table", "json"}:
        raise BadSetting(f"--output {output}: this command prints `table` or `json`; lists have more forms")
    settings = effective(state_dir=state_dir).settings
    return Cli(settings, as_json or output == "json", say, context.command_path)


def _act_cli(dry_run: bool, **given: Any) -> ActCli:
    return ActCli(**vars(_cli(**given)), dry_run=dry_run)


def _list_cli(
    as_json: bool, output: str, columns: str, sort: str, context: typer.Context, state_dir: str | None = None
) -> ListCli:
    if as_json and output not in {"", "json"}:
        raise BadSetting(f"--json is the same as `-o json`, so it cannot be given with -o {output}")
    titles = tuple([title for title in columns.split(",") if title])
    listing = Listing("json" if as_json else output or "table", titles, sort)
    settings = effective(state_dir=state_dir).settings
    return ListCli(settings, listing.is_data, say, context.command_path, listing=listing)


_MAKERS: dict[type[Cli], Callable[..., Cli]] = {Cli: _cli, ListCli: _list_cli, ActCli: _act_cli}
