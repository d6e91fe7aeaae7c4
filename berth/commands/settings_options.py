"""Options of several commands that are settings as well."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from berth.configuration import Effective
from berth.kit.options import described
from berth.settings import KINDS, PREFIX

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


Seed = Annotated[int | None, described("Seed of the simulated faults.")]


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


Processes = Annotated[
    list[str] | None,
    described("State directory of further processes on this machine; may be repeated.", metavar="DIR"),
]


def state_directories(found: Effective, processes: Sequence[str] | None) -> list[Path]:
    """Return the state directory of the settings, and those of further processes on this machine."""
    return [Path(each) for each in (found.settings.database.state_dir, *(processes or ()))]
