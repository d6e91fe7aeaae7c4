"""Describes options and arguments of commands, with their help and shell completion."""

import dataclasses
import inspect
from collections.abc import Callable, Iterable
from typing import Annotated, Any, TypeVar, get_type_hints

import click
import typer
from typer.models import OptionInfo, ParameterInfo

T = TypeVar("T")


WHEN = "2026-12-24T08:00 (UTC), or +2h from now."  # help of options that are times


WHERE = "Where"  # panels of the options of a build request


HOW_MANY = "How many, how long"


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
        """Return for each option class the names of the options that the command takes from it."""
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


def option(default: T, help: str, *names: str, panel: str | None = None, **more: Any) -> T:
    """Return a dataclass field that declares a command's option; a switch with the default False gets no
    `--no-` form.
    """
    return dataclasses.field(default=default, metadata={_ABOUT: described(help, *names, panel=panel, **more)})


def argument(default: T, help: str, **more: Any) -> T:
    """Declare an argument of a command: return a dataclass field with its default and description."""
    return dataclasses.field(default=default, metadata={_ABOUT: positional(help, **more)})


def _made(class_: type[T], names: Iterable[str], given: dict[str, Any]) -> T:
    values = {name: given.pop(name) for name in names}
    return class_(**{name: value for name, value in values.items() if value is not None})


def _keyword(name: str, type_: Any, default: Any, about: Any = None) -> inspect.Parameter:
    """Return a keyword parameter from which typer makes an option or argument.

    `about`: typer's description of the parameter. `default`: a default value, or a dataclass field with a
    default value and with the description to use if `about` is None.
    """
    about = about or getattr(default, "metadata", {}).get(_ABOUT)
    _complete_names(name, about or next(iter(getattr(type_, "__metadata__", ())), None))
    plain = _plain(default)
    if plain == ():
        type_, plain = list[str] | None, None
    if about is not None:
        if isinstance(about, OptionInfo) and about.default is ... and plain is False:
            about.default = f"--{name.replace('_', '-')}"  # typer expects an option's first name here
        type_ = Annotated[type_, about]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=plain, annotation=type_)


def _complete_names(name: str, about: Any) -> None:
    """Add shell completion to the description of a parameter that takes names of hosts or of cells."""
    if not isinstance(about, ParameterInfo) or about.autocompletion is not None:
        return
    metavar = str(about.metavar or "")
    if name == "cell" or "--cell" in (about.param_decls or ()) or metavar == "CELL":
        about.autocompletion = _names_of("cell")
    elif name in {"host", "hosts", "ignore_host"} or metavar in {"HOST", "HOST..."}:
        about.autocompletion = _names_of("host")


def _names_of(kind: str) -> Callable[[click.Context, str], list[str]]:
    """Return a function for shell completion, which loads the bus only when a shell requests names."""

    def completed(ctx: click.Context, incomplete: str) -> list[str]:
        from berth.kit import completion

        return completion.names(kind, ctx, incomplete)

    return completed


def _plain(default: Any) -> Any:
    if not isinstance(default, dataclasses.Field):
        return default
    return inspect.Parameter.empty if default.default is dataclasses.MISSING else default.default
