"""Runs commands: reads the settings in force, explains errors in a sentence, and sets exit codes."""

import asyncio
import logging
import sys
from collections.abc import Coroutine, Iterable, Mapping
from pathlib import Path
from typing import Any

import typer

from berth import logs
from berth.configuration import Effective, read
from berth.kit.refusals import single_errors
from berth.kit.terminal import complain
from berth.settings import BadSetting
from bus.errors import (
    AnswerRefused,
    BrokerRefused,
    MigrationsBroken,
    NoAnswer,
    NoSuchLetter,
    OperationRefused,
    Unavailable,
    Unroutable,
)
from bus.masking import printable

log = logging.getLogger(__name__)


# Errors of users and services are printed as a sentence; anything else is a defect and shows its traceback.
_CONDITIONS = (
    Unavailable, Unroutable, BrokerRefused, AnswerRefused, NoSuchLetter, MigrationsBroken, BadSetting,
    OperationRefused, OSError,
)  # fmt: skip


class _Given:
    """Stores the options before the command's name: `berth --config FILE --set NAME=VALUE COMMAND`."""

    config: Path | None = None
    sets: Mapping[str, str] = {}


def given(config: Path | None, sets: Mapping[str, str]) -> None:
    """Store the options `--config` and `--set` of the command line, for the settings that are read later."""
    _Given.config, _Given.sets = config, sets


def effective(**flags: Any) -> Effective:
    """Return the settings in force, which include this command's options, and configure logging by them."""
    found = read(flags, sets=_Given.sets, file=_Given.config)
    logs.begin(found.settings)
    if found.file is not None:
        log.info("settings are read from %s", found.file)
        if _Given.config is None and complain.is_terminal:
            complain.print(f"settings are read from {found.file}", markup=False, style="dim")
    return found


def run(work: Coroutine[Any, Any, int | None]) -> None:
    """Run a command's coroutine, on uvloop if that is installed, and exit with the code that it returns."""
    try:
        try:
            import uvloop

            code = uvloop.run(work)
        except ImportError:
            code = asyncio.run(work)
    except KeyboardInterrupt:
        code = 130
    raise typer.Exit(code or 0)


def explained(app: typer.Typer) -> None:
    """Run the command line; print an expected error as a sentence, and exit with the error's code."""
    try:
        app()
    except BaseExceptionGroup as group:
        conditions, bugs = group.split(_CONDITIONS)
        if bugs is not None or conditions is None:
            raise
        sys.exit(_explain(single_errors(conditions)))
    except _CONDITIONS as problem:
        sys.exit(_explain([problem]))


def _explain(problems: Iterable[BaseException]) -> int:
    """Print errors as sentences, each once; return exit code 2 if all are wrong settings, else 1."""
    sentences = {_sentence(problem): problem for problem in problems}
    for sentence in sentences:
        complain.print(printable(sentence, lines=True), style="red", markup=False)
    return 2 if all(isinstance(problem, BadSetting) for problem in sentences.values()) else 1


def _sentence(problem: BaseException) -> str:
    if isinstance(problem, OSError) and problem.strerror and problem.filename:
        return f"{problem.filename}: {problem.strerror}"
    if isinstance(problem, (NoAnswer, Unroutable)) and "`berth " not in str(problem):
        return f"{problem}; `berth doctor` names the workers that do not answer"
    return str(problem) or type(problem).__name__
