"""All that unit and contract tests of features import of berth, in addition to `berth.kit`.

A test in tests/integration starts whole processes, and may import how berth composes them.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from berth import composition
from berth.composition import open_placement
from berth.configuration import read
from berth.doctor.judgement import judged
from berth.doctor.looking import inspect
from berth.features import FEATURES, add_filters, packages
from berth.kit.choice_policies import request_options
from berth.kit.findings import Finding
from berth.kit.host_marks import state_of
from berth.operations.audit import audit, placement_breaches
from berth.operations.stored_builds import census, held_by_cell
from berth.operations.stored_claims import allocations, retired
from berth.rest.openapi import operations as rest_operations
from berth.settings import Settings
from bus.protocol import Transport

if TYPE_CHECKING:
    import pytest

__all__ = [
    "FEATURES",  # the names of all features: a test of two asks whether the other one is there
    "add_filters",  # adds the filters of all features to those of this process
    "allocations",  # the allocations in placement's database
    "audit",  # the audit of a whole region, as of `berth audit check`
    "census",  # the builds in the database of a cell
    "commands_connect_by",  # commands use the bus of the test
    "connected_as_commands",  # a connection to the bus that commands use
    "diagnosis",  # the findings of `berth doctor`
    "held_by_cell",  # what a cell knows of builds
    "open_placement",  # a placement with the parts of all features
    "packages",  # the packages with tables in the database of a worker
    "placement_breaches",  # the violated rules in placement's database
    "read",  # settings from files and an environment
    "request_options",  # how a scheduler with these settings reads requests
    "rest_operations",  # the operations of the REST API, with those of features
    "retired",  # the consumers in placement's database that ended
    "state_of",  # the state of a host in words
]


def commands_connect_by(connect: Callable[[], Transport], patch: "pytest.MonkeyPatch") -> None:
    """Let commands connect to the bus of the test, and not to the broker of the settings."""
    patch.setattr(composition, "transport", lambda settings, name, cell="": connect())


def connected_as_commands() -> Transport:
    """Return a connection to the bus that commands use, such as that of `commands_connect_by`."""
    return composition.transport(Settings(), "test")


async def diagnosis(settings: Settings) -> list[Finding]:
    """Return the findings of `berth doctor` with these settings."""
    return judged(await inspect(settings))
