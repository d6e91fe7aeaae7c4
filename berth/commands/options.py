"""Options that several commands share."""

import dataclasses
import inspect
from collections.abc import Callable, Iterable
from typing import Annotated, Any, TypeVar, get_args, get_type_hints

import typer
from typer.core import TyperCommand
from typer.models import OptionInfo

from berth.commands.terminal import Cli, effective, run, say
from berth.settings import KINDS, PREFIX

WHEN = "2026-12-24T08:00 (UTC), or +2h from now."  # help of options that are times
WHERE = "Where"  # panels of the options of a build request
HOW_MANY = "How many, how long"
F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

_ABOUT = "typer"  # key of an option's description in the metadata of its default


def described(help: str, *names: str, panel: str | None = None, **more: Any) -> Any:
    """Return typer's description of an option, for use in `Annotated`."""
    return typer.Option(*names, help=help, rich_help_panel=panel, **_completed(more))


def positional(help: str | None = None, **more: Any) -> Any:
    """Return typer's description of a positional argument, for use in `Annotated`."""
    return typer.Argument(help=help, **_completed(more))


def one_of(values: Iterable[str]) -> Callable[[str], list[str]]:
    """Return a function for shell completion, which returns the `values` that begin with a typed text."""

    def completed(incomplete: str) -> list[str]:
        return [value for value in values if value.startswith(incomplete)]

    return completed


def _completed(more: dict[str, Any]) -> dict[str, Any]:
    """Add shell completion to `more`, the parameters of a typer option or argument, if its metavar lists the
    values, such as `on|off`; return `more`.
    """
    values = str(more.get("metavar", "")).split("|")
    if len(values) > 1 and all(value.islower() for value in values):
        more["autocompletion"] = one_of(values)
    return more


@dataclasses.dataclass(frozen=True)
class OptionsOf:
    """The description of a field that has one dataclass of options for each of `classes`, such as those that
    features add. Fields named in `without` are left out.
    """

    classes: tuple[type[Any], ...]
    without: tuple[str, ...] = ()

    def fields(self) -> dict[type[Any], tuple[str, ...]]:
        return {
            class_: tuple(
                field.name for field in dataclasses.fields(class_) if field.name not in self.without
            )
            for class_ in self.classes
        }

    def keywords(self) -> list[inspect.Parameter]:
        """Return the parameters from which typer makes the options."""
        return [
            _keyword(field.name, get_type_hints(class_, include_extras=True)[field.name], field)
            for class_, names in self.fields().items()
            for field in dataclasses.fields(class_)
            if field.name in names
        ]

    def made(self, given: dict[str, Any]) -> tuple[Any, ...]:
        """Return the dataclasses with the values that a command was given; take these out of `given`."""
        return tuple(_made(class_, names, given) for class_, names in self.fields().items())


Cells = Annotated[str | None, described("Names of the cells, comma separated, or how many.")]
Hosts = Annotated[int | None, described("Simulated hosts, over all cells.", min=1)]
Driver = Annotated[
    str | None,
    described("Kinds of hosts, dealt out: flat, numa, sriov, vgpu, devices, or of simulator.machines."),
]
Fail = Annotated[float | None, described("Share of builds that fail on their first host.", min=0, max=1)]
BuildTime = Annotated[
    str | None,
    described("How long a build takes: constant:1, uniform:1,3, exponential:0.2, lognormal:1,0.5."),
]
StateDir = Annotated[str | None, described("Where the embedded berth keeps its state (default: .berth).")]
Seed = Annotated[int | None, described("Seed of the simulated faults.")]
Json = Annotated[bool, described("Print JSON.", "--json")]
Http = Annotated[str | None, described("Serve the Placement API there (default: no).", metavar="HOST:PORT")]
Rest = Annotated[str | None, described("Serve the REST API there (default: no).", metavar="HOST:PORT")]
Database = Annotated[str | None, described("PostgreSQL, or SQLite in a file.", metavar="URL")]
Room = Annotated[
    str | None,
    described(
        "Serve the page of operators there (default: 127.0.0.1:8780, or any free port).",
        "--control-room",
        metavar="HOST:PORT|off",
    ),
]


_SETTINGS = {  # option → its setting, if it has another name
    "driver": "simulator.drivers",
    **{name.removeprefix(PREFIX): name for name in KINDS if name.startswith(PREFIX)},
    "database": "database_url", "bus": "amqp_url", "http": "placement_http",
    "auth": "placement_auth", "tokens": "placement_tokens", "policy": "placement_policy",
    "control_room": "control_room_http", "rest": "rest_http", "metrics": "metrics_http",
}  # fmt: skip


def settings_given(options: Any) -> dict[str, Any]:
    """Return the values of options that are also settings, by setting name; None for an option not given."""
    given = {_SETTINGS.get(name, name): value for name, value in vars(options).items()}
    return {name: value for name, value in given.items() if name in KINDS}


class WaitingCommand(TyperCommand):
    """A command with the option `--wait`, alone or with a time: `--wait 30m` allows a wait for capacity."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]
        from berth.operations.boot_options import is_time  # loads the bus, which `berth --help` does not need

        completed = []
        for position, arg in enumerate(args):
            after = args[position + 1] if position + 1 < len(args) else ""
            completed.append("--wait=" if arg == "--wait" and not is_time(after) else arg)
        return super().parse_args(ctx, completed)


class Commands(typer.Typer):
    """A group of commands with functions that may be coroutines and may take dataclasses of options."""

    def command(self, name: str, **options: Any) -> Callable[[F], F]:  # type: ignore[override]
        register = super().command(name, **options)

        def registered(function: F) -> F:
            register(_expanded(function))
            return function

        return registered


def option(default: T, help: str, *names: str, panel: str | None = None, **more: Any) -> T:
    """Return a dataclass field that declares a command's option; a switch with the default False gets no
    `--no-` form.
    """
    return dataclasses.field(default=default, metadata={_ABOUT: described(help, *names, panel=panel, **more)})


def argument(default: T, help: str, **more: Any) -> T:
    """Declare an argument of a command: return a dataclass field with its default and description."""
    return dataclasses.field(default=default, metadata={_ABOUT: positional(help, **more)})


def _expanded(function: Callable[..., Any]) -> Callable[..., None]:
    """Return a function for typer with one parameter for each field of the command's dataclass parameters.

    `Annotated[Class, {field: typer.Option(…)}]` describes the fields of a dataclass without descriptions;
    fields that the mapping lacks are omitted. A parameter of type `Cli` becomes the options --json and
    --state-dir. `Annotated[Cli, help]` sets the help of --json; a second annotation omits --state-dir.
    """
    parameters: list[inspect.Parameter] = []
    last: list[inspect.Parameter] = []
    records: dict[str, tuple[Any, tuple[str, ...]]] = {}
    several: dict[tuple[str, str], OptionsOf] = {}  # parameter and field → its dataclasses
    hints = get_type_hints(function, include_extras=True)
    for name, parameter in inspect.signature(function).parameters.items():
        hint = hints[name]
        class_, *about = get_args(hint) if hasattr(hint, "__metadata__") else (hint,)
        if class_ is Cli:
            json = Annotated[bool, described(about[0], "--json")] if about else Json
            last = [_keyword("as_json", json, False), _keyword("state_dir", StateDir, None)]
            last = last[: 3 - max(len(about), 1)]
            records[name] = _cli, (*(option.name for option in last), "context")
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
        for name, (class_, fields) in records.items():
            values = {field: given[field] if field in hints else given.pop(field) for field in fields}
            values |= {field: each.made(given) for (of, field), each in several.items() if of == name}
            given[name] = class_(**{field: value for field, value in values.items() if value is not None})
        work = function(**given)
        if inspect.iscoroutine(work):
            run(work)

    command.__doc__, command.__name__ = function.__doc__, function.__name__
    command.__signature__ = inspect.Signature([*parameters, *last])  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in (*parameters, *last)}
    return command


def _made(class_: type[T], names: Iterable[str], given: dict[str, Any]) -> T:
    values = {name: given.pop(name) for name in names}
    return class_(**{name: value for name, value in values.items() if value is not None})


def _cli(as_json: bool, context: typer.Context, state_dir: str | None = None) -> Cli:
    return Cli(effective(state_dir=state_dir).settings, as_json, say, context.command_path)


def _keyword(name: str, type_: Any, default: Any, about: Any = None) -> inspect.Parameter:
    """Return a keyword parameter from which typer makes an option or argument.

    `about`: typer's description of the parameter. `default`: a default value, or a dataclass field with a
    default value and with the description to use if `about` is None.
    """
    about = about or getattr(default, "metadata", {}).get(_ABOUT)
    plain = _plain(default)
    if plain == ():
        type_, plain = list[str] | None, None
    if about is not None:
        if isinstance(about, OptionInfo) and about.default is ... and plain is False:
            about.default = f"--{name.replace('_', '-')}"  # typer expects an option's first name here
        type_ = Annotated[type_, about]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=plain, annotation=type_)


def _plain(default: Any) -> Any:
    if not isinstance(default, dataclasses.Field):
        return default
    return inspect.Parameter.empty if default.default is dataclasses.MISSING else default.default
