"""Defines the options of the simulated agents: a group of settings with a file and a table of its own.

An option is `simulator.NAME` after --set, `BERTH_SIMULATOR_NAME` in the environment, and NAME in the TOML
table `[simulator]` or in the TOML file that the setting `simulator` names.
"""

from msgspec import field

from bus.feature import SettingsGroup

SIMULATOR = "simulator"  # the setting that names the file of these options, or is a table of them
PREFIX = f"{SIMULATOR}."


class SimulatorSettings(SettingsGroup, frozen=True, kw_only=True, rename=lambda name: f"{PREFIX}{name}"):
    """The simulated agents: their hosts, and the durations and faults of their builds (docs/agents.md)."""

    hosts: int = 200  # number of simulated hosts in all cells together
    baremetal: int = 0  # number of simulated bare-metal nodes, in addition to the hosts
    agents_per_cell: int = 1  # number of simulated agents in each cell; they share the cell's simulated hosts
    zones: tuple[str, ...] = ()  # availability zones, assigned to the hosts in rotation
    # labels of hosts: for each level the number of neighbouring hosts with the same label, as in
    # rack=20,row=100 (docs/topology.md)
    labels: dict[str, float] = field(default_factory=dict)
    # CPU architectures (x86_64, aarch64 and so on), assigned to the hosts in rotation
    architectures: tuple[str, ...] = ("x86_64",)
    # machine types, assigned to hosts in rotation: flat, numa, sriov, vgpu, devices, of a file, module:Class
    drivers: tuple[str, ...] = ("flat",)
    machines: str = ""  # TOML file with further machine types
    # file provider.yaml in Nova's format, or a directory of such files: additional inventories of hosts
    provider_config: str = ""
    # duration of a build as a distribution: constant:1, uniform:1,3, exponential:0.1, lognormal:1,0.5
    build_time: str = "exponential:0.1"
    fail: float = 0.0  # share of builds that fail on their first host and are tried on the next
    abort: float = 0.0  # share of builds that fail permanently
    hang: float = 0.0  # share of builds that never report an end
    # share of the phases of moves that fail: checks, copies, starts, rebuilds
    move_fail: float = 0.0
    move_hang: float = 0.0  # share of the phases of moves that never report an end
    move_time: str = ""  # duration of each phase of a move, like build_time; empty: build_time
    crash_after: int = 0  # number of builds after which an agent loses power and starts again; 0: never
    seed: int = 1  # seed of all durations and faults
