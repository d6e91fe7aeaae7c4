"""The declaration of a feature: of a folder below `features/`, which `berth` runs because it is in its list.

A feature's folder has a module `feature` with the value FEATURE. Other modules and folders have meanings by
their names, and each may be missing:

    messages     its messages, topics and queries; PAGE_ASKS are the queries of its pages; PARTS has its parts
                 of messages of the kernel (`bus.parts`)
    processes    `make(process, settings, bus, store)` returns a worker of a process that the feature
                 declares; `check(settings, refuse)` checks its settings
    commands     its group of commands, as the Typer `commands`
    pages        `routes(context, renderer)` returns the routes of its pages
    templates    the templates of its pages
    migrations   the migrations of the database that its processes share
    bench.suite  its benchmarks, in the dictionary SUITE
    tests        its tests; `tests/support/pages` has its pages for tests of all pages
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec


class SettingsGroup(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base class of groups of settings. All times are in seconds."""


@dataclass(frozen=True, kw_only=True)
class FeatureProcess:
    """A worker that runs in a process of its own: `berth run NAME`. Other workers do not need its answers, so
    it stops first.

    `runs_with`: whether `berth up` runs it with these settings of the feature.
    """

    name: str
    runs_with: Callable[[Any], bool]
    has_database: bool = False


@dataclass(frozen=True, kw_only=True)
class Feature:
    name: str  # of the folder
    says: str
    needs: tuple[str, ...] = ()  # names of features whose modules it imports
    settings: type[SettingsGroup] | None = None
    processes: tuple[FeatureProcess, ...] = ()
    commands: str = ""  # description of its group of commands, which has the feature's name; empty: none
    page: str = ""  # name of its page in the navigation, at the address /NAME; empty: none
    meters: tuple[tuple[str, str], ...] = ()  # a module with metrics, and the process that serves them
    examples: tuple[tuple[str, Any], ...] = ()  # settings with which all of its processes run
