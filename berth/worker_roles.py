"""Determines from the settings which workers run, which share a process, and which stop first."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from berth.features import processes
from berth.settings import BadSetting, Settings, names_a_file
from bus.masking import masked

OF_FEATURES = {process.name: feature for feature, process in processes()}
WORKERS = (
    "placement", "scheduler", "conductor", "compute", "metal", "ironic", *OF_FEATURES, "control-room",
    "rest", "ferry",
)  # fmt: skip
_OF_A_CELL = ("conductor", "compute", "metal", "ferry")
_TOGETHER = ("placement", "scheduler", "conductor", "compute")  # may share a process
_SHARED_BY_CELLS = ("conductor", "compute")  # workers of several cells may share a process


@dataclass(frozen=True)
class Role:
    """A worker to run: its type, and its cell and agent if it has them."""

    worker: str
    cell: str = ""
    agent: str = ""  # empty, or one of several agents that share a cell's nodes or hosts

    def __str__(self) -> str:
        return ".".join(filter(None, (self.worker, self.cell, self.agent)))


def role_named(worker: str, cell: str, settings: Settings, agent: str = "") -> Role:
    """Return the role of a worker; raise BadSetting if its name, cell or agent is wrong or missing. The cell
    may be missing if the settings have only one.
    """
    if worker not in WORKERS:
        known = ", ".join(WORKERS)
        raise BadSetting(f"there is no worker {worker!r}; there are: {known}")
    if worker in _OF_A_CELL and not cell and len(settings.cell_names) == 1:
        (cell,) = settings.cell_names
    if worker in _OF_A_CELL and not cell:
        raise BadSetting(
            f"{worker} belongs to a cell: name it with --cell ({', '.join(settings.cell_names)})"
        )
    if worker not in _OF_A_CELL and cell:
        raise BadSetting(f"{worker} belongs to no cell; leave --cell out")
    if worker == "metal":
        _check_metal(cell, settings)
    if worker == "rest" and not settings.rest.http:
        raise BadSetting("rest serves the REST API: name its address with --rest HOST:PORT, or set rest_http")
    if agent and worker not in ("metal", "compute"):
        raise BadSetting(
            f"--agent names one of the agents that share a cell's hosts or nodes; {worker} takes no agent"
        )
    if agent and not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", agent):
        raise BadSetting(f"--agent {agent!r}: a name of letters, digits, _ and -")
    if agent and worker == "compute" and agent not in (theirs := agents_of(cell, settings)):
        raise BadSetting(f"--agent {agent!r}: the agents of cell {cell!r} are {', '.join(theirs)}")
    if worker == "ferry" and not settings.cell(cell).ferry:
        known = ", ".join(cell.name for cell in settings.every_cell if cell.ferry) or "none"
        raise BadSetting(f"cell {cell!r} has no separate RabbitMQ; the cells in cell_ferry_urls are: {known}")
    return Role(worker, cell, agent)


def roles_named(names: Sequence[str], cells: str, settings: Settings, agent: str = "") -> list[Role]:
    """Return the roles of one process that runs workers of the types `names`, in the order in which they
    start. A type that runs in cells has one role for each cell in the comma-separated text `cells`.

    Raise BadSetting if the workers cannot share a process.
    """
    several = list(dict.fromkeys(cells.split(",")))
    workers = sorted(dict.fromkeys(names), key=lambda name: WORKERS.index(name) if name in WORKERS else -1)
    if alone := [name for name in workers if len(workers) > 1 and name not in _TOGETHER]:
        raise BadSetting(f"{alone[0]} runs in a process of its own; {', '.join(_TOGETHER)} may share one")
    if agent and len(workers) > 1:
        raise BadSetting("--agent names one agent, which runs in a process of its own")
    if len(several) > 1 and (agent or not set(workers) & set(_SHARED_BY_CELLS)):
        raise BadSetting(f"--cell {cells}: of several cells only conductors, or all agents, share a process")
    found = [
        role_named(worker, cell, settings, agent)
        for worker in workers
        for cell in (several if len(workers) == 1 or worker in _OF_A_CELL else [""])
    ]
    if len({settings.cell(role.cell).broker for role in found}) > 1:
        raise BadSetting(f"--cell {cells}: they are on different RabbitMQs, and each needs a process there")
    return found


def _check_metal(cell: str, settings: Settings) -> None:
    if not settings.ironic.is_read:
        raise BadSetting("metal builds through Ironic's API: set ironic_api")
    if cell not in _metal_cells(settings):
        known = ", ".join(_metal_cells(settings)) or "none"
        raise BadSetting(f"no node of Ironic's is built on by berth in cell {cell!r}; there are: {known}")


def _metal_cells(settings: Settings) -> list[str]:
    """Return the cells in which berth's own agents deploy instances on Ironic's nodes."""
    if not settings.ironic.is_read:
        return []
    return [cell for cell in settings.metal_cells if cell not in settings.ironic.nodes.agents]


def roles_of(settings: Settings) -> list[Role]:
    """Return the roles of all workers of the settings; workers that answer queries come before workers that
    send them.
    """
    if names_a_file(settings.database.url):
        raise BadSetting(
            f"database_url = {masked(settings.database.url)!r}: is one file, but every store needs a "
            "separate one: name a directory, with a / at the end"
        )
    found = [Role("placement"), Role("ironic")]
    found += [Role("ferry", cell.name) for cell in settings.every_cell if cell.ferry]
    found += [Role("conductor", cell) for cell in settings.cell_names]
    for cell in settings.cell_names:
        several = agents_of(cell, settings) if settings.simulator.agents_per_cell > 1 else [""]
        found += [Role("compute", cell, agent) for agent in several]
    found += [Role("metal", cell) for cell in _metal_cells(settings)]
    found.append(Role("scheduler"))
    for feature, process in processes():
        if feature.settings is None or process.runs_with(settings.of(feature.settings)):
            found.append(Role(process.name))
    if settings.rest.http:
        found.append(Role("rest"))
    return [*found, Role("control-room")] if settings.control_room.listens else found


def processes_of_up(settings: Settings) -> list[tuple[Role, ...]]:
    """Return the roles of each process under `berth up`."""
    if settings.compact:
        return _compact(settings)
    return [(role,) for role in roles_of(settings)]


def _compact(settings: Settings) -> list[tuple[Role, ...]]:
    """Return the roles of each process: one for placement and scheduler, one for the conductors and agents of
    each broker, and one for each other worker. Everything in one process would use one core.
    """
    shared: dict[tuple[bool, str], list[Role]] = {}
    others: list[tuple[Role, ...]] = []
    for role in roles_of(settings):
        if role.worker in _TOGETHER and not role.agent:
            of_cells = role.worker in _SHARED_BY_CELLS
            shared.setdefault((of_cells, settings.cell(role.cell).broker), []).append(role)
        else:
            others.append((role,))
    groups = [sorted(group, key=lambda role: WORKERS.index(role.worker)) for group in shared.values()]
    return [*map(tuple, groups), *others]


_STAGES = (  # in the order in which workers stop: senders of queries come first
    ("control-room", "rest", *OF_FEATURES),
    ("scheduler", "compute", "metal", "ironic"),
    ("conductor",),
    ("ferry",),
    ("placement",),
)


def stages_of(roles: Sequence[Role]) -> list[list[Role]]:
    """Return the roles in groups, in the order in which to stop them: senders of queries come first."""
    grouped = [[role for role in roles if role.worker in stage] for stage in _STAGES]
    return [stage for stage in grouped if stage]


def name_of(together: Sequence[Role]) -> str:
    """Return the name of a process, made from its roles, such as conductor.c1, conductor.c1+c2, or
    placement+scheduler.
    """
    names: list[str] = []
    for _, (first, *others) in groupby(together, key=lambda role: role.worker):
        names += [str(first), *(role.agent or role.cell for role in others)]
    return "+".join(names)


def agents_of(cell: str, settings: Settings) -> list[str]:
    """Return the names of a cell's simulated agents, as many as the option `simulator.agents_per_cell`."""
    from compute_sim.machines import agent_name

    return [agent_name(cell, number + 1) for number in range(settings.simulator.agents_per_cell)]


def metal_agent(settings: Settings, cell: str) -> str:
    """Return the name of the agent of a cell's bare-metal nodes, a simulated one if the settings name no
    Ironic API.
    """
    if settings.ironic.is_read:
        return settings.ironic.nodes.agents.get(cell) or f"{cell}-metal"
    return f"{cell}-agent1"
