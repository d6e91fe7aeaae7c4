"""Reads settings of the scheduler from a file that an operator names, to compare them with those in force."""

from pathlib import Path

from berth.configuration import read
from berth.settings import SchedulerSettings


def scheduler_settings_in(file: Path) -> SchedulerSettings:
    """Return the scheduler's settings in a TOML file, without the environment; raise BadSetting if one is
    wrong.
    """
    return read(file=file, environment={}).settings.scheduler
