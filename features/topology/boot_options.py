"""Options of build requests for constraints on domains, and for the roles of a gang."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from berth.kit import HOW_MANY, WHERE, BadSetting, BootOptionsPart, option
from bus.clock import Clock
from bus.delivery.runner import Bus
from bus.errors import NOT_JSON
from bus.messages import BuildRequested
from bus.requests import Flavor
from control_room.kit import FormField, RequestField
from features.groups.constraint_options import topology_given
from features.groups.constraints import DomainConstraints
from features.topology.messages import GangRole, TopologyPart, topology_of

_FIGURES = ("vcpus", "memory_mb", "disk_gb")


@dataclass(frozen=True, kw_only=True)
class TopologyOptions:
    pack: str = option(
        "",
        "All instances in one domain of this level, such as one rack (features/topology/README.md).",
        metavar="LEVEL",
        panel=WHERE,
    )
    spread: str = option(
        "", "At most K instances (1) in each domain of this level.", metavar="LEVEL[:K]", panel=WHERE
    )
    prefer_topology: bool = option(False, "--pack and --spread are preferences, not conditions.", panel=WHERE)
    role: Sequence[str] = option(
        (),
        "A gang, claimed all together: so many instances of the flavor with these changes, such as"
        " worker:3,vcpus=4; or a JSON file with a list of roles; may be repeated.",
        metavar="NAME:COUNT,KEY=VALUE,...|FILE.json",
        panel=HOW_MANY,
    )

    def requested(self, request: BuildRequested) -> BuildRequested:
        """Return the request with the roles and constraints of the options; raise BadSetting if they
        contradict.
        """
        roles = roles_given(self.role, request.flavor)
        if roles and len(request.instances) != 1:
            raise BadSetting("--count is not possible with --role: each role has a count, as in worker:3")
        topology = topology_given(self.pack, self.spread, self.prefer_topology)
        if not roles and not topology.levels:
            return request
        parts = request.parts.having(TopologyPart(topology=topology, roles=roles))
        request = msgspec.structs.replace(request, parts=parts)
        if not roles:
            return request
        clock, count = Clock(), sum(role.count for role in roles)
        instances = tuple(clock.uuid() for _ in range(count))
        return msgspec.structs.replace(request, flavor=roles[0].flavor, instances=instances)

    async def resolved(self, bus: Bus, request: BuildRequested) -> BuildRequested:
        return request


def roles_given(given: Sequence[str], flavor: Flavor) -> tuple[GangRole, ...]:
    """Return the roles of a gang from texts such as `worker:3,vcpus=4`, or from a JSON file with a list of
    roles if a text ends in .json.

    A role has the flavor of the command's other options, with the given changes.
    """
    roles: list[GangRole] = []
    for text in given:
        if text.endswith(".json"):
            roles += _roles_of_file(text)
            continue
        head, *changes = text.split(",")
        name, colon, count = head.partition(":")
        if not name or (colon and not count.isdecimal()):
            raise BadSetting(f"--role {text}: takes NAME:COUNT,KEY=VALUE,... or a file named *.json")
        figures, specs = {}, dict(flavor.extra_specs)
        for change in changes:
            key, equals, value = change.partition("=")
            if not equals:
                raise BadSetting(f"--role {text}: {change!r} is not KEY=VALUE")
            if key not in _FIGURES:
                specs[key] = value
            elif value.isdecimal():
                figures[key] = int(value)
            else:
                raise BadSetting(f"--role {text}: {key} takes a whole number")
        of_role = msgspec.structs.replace(flavor, name=f"{flavor.name}-{name}", extra_specs=specs, **figures)
        roles.append(GangRole(name=name, flavor=of_role, count=int(count or 1)))
    return tuple(roles)


def _roles_of_file(path: str) -> list[GangRole]:
    try:
        return msgspec.json.decode(Path(path).read_bytes(), type=list[GangRole])
    except OSError as problem:
        raise BadSetting(f"--role {path}: {problem.strerror}") from None
    except NOT_JSON as problem:
        raise BadSetting(f"--role {path}: no list of roles in JSON: {problem}") from None


def _spread_of(topology: DomainConstraints) -> str:
    return f"{topology.required_spread}:{topology.max_per_domain}" if topology.required_spread else ""


PART = BootOptionsPart(
    TopologyOptions,
    (
        RequestField(
            FormField(name="pack", label="Pack into one domain of", placeholder="rack"),
            lambda request: topology_of(request.parts).required_pack,
        ),
        RequestField(
            FormField(name="spread", label="Spread over domains of", placeholder="rack:2"),
            lambda request: _spread_of(topology_of(request.parts)),
        ),
    ),
)
