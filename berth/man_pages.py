"""Makes manual pages in troff: one of each command and group of commands, and one of the settings file."""

import inspect
import re
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any

import click
import typer

from berth import __version__
from berth.command_table import commands, meaning_of_1
from berth.reference_tables import toml_value
from berth.setting_tables import settings_there_are, simulator_options
from berth.settings import PREFIX

_EXITS = (
    ("0", "The command is done, or the checked condition holds."),
    ("1", "The command could not be done, or the condition does not hold."),
    ("2", "An argument or a setting is wrong; nothing was tried."),
    ("130", "Ctrl-C stopped the command."),
)
_CODE = re.compile(r"`([^`]+)`")


def man_pages(app: typer.Typer) -> Iterator[tuple[str, str]]:
    """Yield the file name and the text of each manual page."""
    every = dict(commands(app, groups=True))
    top: Any = typer.main.get_command(app)
    for path, command in {"": top, **every}.items():
        below = [name for name in every if name.rpartition(" ")[0] == path]
        name = f"berth {path}".rstrip()
        yield f"{_file(name)}.1", _page(name, 1, _of_command(name, command, [every[b] for b in below]))
    yield "berth.toml.5", _page("berth.toml", 5, _of_settings())


def _page(name: str, section: int, lines: Iterable[str]) -> str:
    title = f'.TH "{_text(_file(name).upper())}" "{section}" "" "berth {__version__}" "berth"'
    return "\n".join((title, *lines)) + "\n"


def _of_command(name: str, command: click.Command, below: list[click.Command]) -> Iterator[str]:
    context = click.Context(command, info_name=name)
    paragraphs = inspect.cleandoc(command.help or "").split("\n\n")
    purpose = _joined(paragraphs[0]).partition(". ")[0].rstrip(".")
    yield from (".SH NAME", f"{_text(_file(name))} \\- {_text(purpose)}")
    usage = " ".join(command.collect_usage_pieces(context))
    yield from (".SH SYNOPSIS", f"\\fB{_text(name)}\\fR {_text(usage)}", ".SH DESCRIPTION")
    for number, paragraph in enumerate(paragraphs):
        yield from (".PP", *_paragraph(paragraph)) if number else _paragraph(paragraph)
    if below:
        yield ".SH COMMANDS"
        for subcommand in below:
            first = inspect.cleandoc(subcommand.help or "").split("\n\n")[0]
            yield from _item(f"\\fB{_text(f'{name} {subcommand.name}')}\\fR", _joined(first))
    for title, wanted in ("ARGUMENTS", "argument"), ("OPTIONS", "option"):
        records = [
            found
            for parameter in command.get_params(context)
            if parameter.param_type_name == wanted and (found := parameter.get_help_record(context))
        ]
        if records:
            yield f".SH {title}"
        for term, meaning in records:
            yield from _item(f"\\fB{_text(term)}\\fR", _joined(meaning))
    if not below:
        own = meaning_of_1(name.removeprefix("berth "))
        yield ".SH EXIT STATUS"
        for code, meaning in _EXITS:
            more = f" Here: {own}." if own and code == "1" else ""
            yield from _item(code, meaning + more)
    related = "berth.toml(5)" if name == "berth" else "berth(1), berth.toml(5)"
    yield from (".SH SEE ALSO", _text(related))


def _of_settings() -> Iterator[str]:
    yield from (".SH NAME", "berth.toml \\- the settings of berth", ".SH DESCRIPTION")
    yield _text(
        "Every setting NAME is also the environment variable BERTH_NAME and the option --set NAME=VALUE. The"
        " environment overrides berth.toml (also one that BERTH_CONFIG names); the options --config FILE and"
        " --set, and those of a command, override the environment, in this order."
        " BERTH_NAME_FILE names a file with the value, for secrets. All times are in seconds. `berth init`"
        " writes this file with every setting."
    )
    for group, settings in groupby(settings_there_are(), lambda setting: setting.group):
        yield f".SH {_text(_joined(group).rstrip('.'))}"
        for setting in settings:
            term = f"\\fB{_text(setting.name)}\\fR = {_text(toml_value(setting.default))}"
            yield from _item(term, setting.says)
    yield ".SH OPTIONS OF THE SIMULATOR"
    for option in simulator_options():
        term = f"\\fB{_text(f'{PREFIX}{option.name}')}\\fR = {_text(toml_value(option.default))}"
        yield from _item(term, option.says)
    yield from (".SH SEE ALSO", "berth(1), berth\\-init(1), berth\\-settings(1)")


def _item(term: str, meaning: str) -> tuple[str, ...]:
    return (".TP", term, _text(meaning))


def _paragraph(text: str) -> tuple[str, ...]:
    if not text.startswith("    "):
        return (_text(_joined(text)),)
    return (".nf", *(_text(line) for line in text.splitlines()), ".fi")


def _file(name: str) -> str:
    return name.replace(" ", "-")


def _joined(text: Any) -> str:
    return " ".join(str(text).split())


def _text(text: str) -> str:
    """Return a line of troff that prints the text; code in backticks becomes bold."""
    escaped = text.replace("\\|", "|").replace("\\", "\\e").replace("-", "\\-")
    escaped = _CODE.sub(r"\\fB\1\\fR", escaped)
    escaped = re.sub(r"[^\x00-\x7f]", lambda found: f"\\[u{ord(found[0]):04X}]", escaped)
    return f"\\&{escaped}" if escaped.startswith((".", "'")) else escaped
