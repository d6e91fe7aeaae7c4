"""The fault plan of a simulated world: how often each fault happens. All rates are probabilities unless their
comment gives a unit; 0 switches a fault off.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any


@dataclass(frozen=True)
class FaultRates:
    # messages
    reorder: float = 0.2
    duplicate: float = 0.1
    late_copies: float = 0.03  # of messages about moves, builds and agents: delivered again much later
    # processes and agents
    crashes: int = 6  # killed processes
    reschedule: float = 0.25
    abort: float = 0.05
    hang: float = 0.05
    phases: float = 0.08  # of moves, that fail
    phases_hang: float = 0.03
    waits: float = 0.0  # of moves, that may wait for free capacity
    killed_in_commit: int = 0  # agents killed while changes of their files are not committed yet
    # the broker
    lost_confirms: float = 0.0  # of publications that the broker has stored
    redeliveries: int = 0  # times that a connection breaks: its messages return, in another order
    leaderless: int = 0  # times that queues have no leader for some seconds
    lost_queues: int = 0  # queues that are lost with their messages, and declared again
    index_lag: float = 0.0  # of changes of placement, that reach a replica of its index seconds late
    # the databases
    failing_statements: float = 0.0  # of the different statements of workers, that fail once
    lost_commits: int = 0  # fail-overs to an asynchronous standby

    @property
    def loses_messages(self) -> bool:
        """Return whether requests can be lost after their confirm, so that clients must repeat them."""
        return bool(self.lost_queues or self.lost_commits)


SERVER_FAULTS: Mapping[str, Mapping[str, Any]] = {
    "confirms": {"lost_confirms": 0.05},
    "redelivery": {"redeliveries": 4},
    "leader": {"leaderless": 4},
    "queue": {"lost_queues": 2},
    "lag": {"index_lag": 0.2},
    "commits": {"lost_commits": 1},
    "file": {"killed_in_commit": 3},
    "statements": {"failing_statements": 0.25},
}
HARSH: Mapping[str, Any] = {
    "reorder": 0.5,
    "duplicate": 0.3,
    "crashes": 20,
    "reschedule": 0.4,
    "abort": 0.05,
    "hang": 0.1,
    "phases": 0.2,
    "phases_hang": 0.1,
    "waits": 0.5,
}


def with_faults(names: str, rates: FaultRates | None = None) -> FaultRates:
    """Return a fault plan with the named faults added: names of SERVER_FAULTS, `servers` for all of them,
    `harsh`, or `name=value` for one field; separated by commas.
    """
    rates = rates or FaultRates()
    for name in filter(None, names.split(",")):
        if name == "servers":
            for changes in SERVER_FAULTS.values():
                rates = replace(rates, **changes)
        elif name == "harsh":
            rates = replace(rates, **HARSH)
        elif name in SERVER_FAULTS:
            rates = replace(rates, **SERVER_FAULTS[name])
        else:
            rates = replace(rates, **_field(name))
    return rates


def _field(assignment: str) -> dict[str, Any]:
    name, _, value = assignment.partition("=")
    known = {field.name for field in fields(FaultRates)}
    if name not in known or not value:
        accepted = ", ".join(("servers", "harsh", *SERVER_FAULTS, *(f"{field}=…" for field in sorted(known))))
        raise ValueError(f"there is no fault {assignment!r}; there are: {accepted}")
    kind = type(getattr(FaultRates(), name))
    return {name: kind(float(value))}
