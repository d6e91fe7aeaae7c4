"""Parts of features in processes: own workers, shared queues, authentication, connections of operators."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Container, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from berth.features import added, features, package_of, part_in
from berth.settings import Settings
from bus.clock import Clock
from bus.feature import Feature, Refuse

if TYPE_CHECKING:  # every command imports this module, so it must load fast
    from berth.kit.findings import Finding
    from bus.delivery.recording import RecordingBus
    from bus.delivery.runner import Bus
    from bus.protocol import Transport
    from bus.sql.database import Database
    from bus.worker import Worker


def _accept(settings: Settings, refuse: Refuse) -> None:
    pass


@dataclass(frozen=True)
class ProcessPart:
    """Makes the worker of a process that the feature declares, and checks the settings of these processes.
    `make` gets the name of the process, the settings, the bus, and the database of the process or None.
    """

    make: Callable[[str, Settings, Bus, Database | None], Worker]
    check: Callable[[Settings, Refuse], None] = _accept


@dataclass(frozen=True)
class AgentQueuesPart:
    """Lets the agents of a cell share queues. `gateway` returns the worker that reads these queues, from the
    cell, the bus and the removed agents; `sharing` returns an agent's worker without queues of its own.
    """

    gateway: Callable[[str, Bus, Container[str]], Worker]
    sharing: Callable[[Worker, Bus], Worker]


@dataclass(frozen=True)
class OperatorPart:
    """Returns the connection of an operator whose RabbitMQ user the feature made; None for other users."""

    bus: Callable[[Settings, Transport], RecordingBus | None]


@dataclass(frozen=True, kw_only=True)
class AuthenticationPart:
    """A method of authentication."""

    tokens: Callable[[Settings, Clock], Any]  # returns a `placement_worker.http.extension.TokenChecker`
    rules: Mapping[str, str]  # policy rules in place of the defaults
    check: Callable[[Settings, Refuse], None]  # checks its settings
    # returns the access rules of the control room: `control_room.kit.AccessRules`
    sign_in: Callable[..., Any]
    finding: Callable[[Settings, Clock], Awaitable[Finding]]  # its part of `berth doctor`
    note: str  # printed by `berth access list`


def authentication(method: str) -> AuthenticationPart | None:
    """Return a feature's method of authentication; None: no feature has this method."""
    having = [feature for feature in features() if method and feature.authentication == method]
    found = [part for feature in having for part in added(AuthenticationPart, "authentication", of=feature)]
    return found[0] if found else None


def worker_of(feature: Feature, process: str, settings: Settings, bus: Bus, store: Database | None) -> Worker:
    """Return the worker of a process that a feature declares."""
    [module] = [each.module for each in feature.processes if each.name == process]
    part = part_in(import_module(f"{package_of(feature)}.{module}"), ProcessPart)
    return part.make(process, settings, bus, store)
