"""Parses changes of priority classes and reservations for the test of a policy, such as
`priority.batch.preempts=true` and `reservation.season=none`.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from uuid import NAMESPACE_OID, uuid5

import msgspec
from msgspec import structs

from berth.operations.boot_options import BootOptions, boot_request
from berth.settings import BadSetting
from bus.delivery.runner import Bus
from bus.messages import BuildRequested
from control_room.core.flavor_form import parse_flavor
from features.policies.messages import TrialPolicy
from features.preemption.messages import PRIORITIES, FindPriorities, PriorityClass
from features.reservations.edits import reservation_named
from features.what_if.core.request_form import MOST_INSTANCES

_MOST_PRIORITY = 9
_TYPES: Mapping[str, type[int]] = {"value": int, "budget": int, "preempts": bool}


@dataclass
class StoredChanges:
    """Changes of priority classes and reservations, to be applied to the classes and reservations in the
    databases.
    """

    priorities: dict[str, dict[str, int]] = field(default_factory=dict)  # class → changed options
    removed: list[str] = field(default_factory=list)  # names or uuids of reservations
    added: list[BuildRequested] = field(default_factory=list)  # reservations, as requests of builds

    @property
    def of_reservations(self) -> bool:
        return bool(self.removed or self.added)

    def take(self, change: str) -> bool:
        """Store a change of a priority class or reservation; return False for any other change. Raise
        BadSetting if the change is invalid.
        """
        name, _, value = change.partition("=")
        subject, _, named = name.partition(".")
        if subject == "priority" and "." in named:
            called, _, option = named.rpartition(".")
            self.priorities.setdefault(called, {})[option] = _option(change, option, value)
        elif subject == "reservation" and named and value == "none":
            self.removed.append(named)
        elif subject == "reservation" and named:
            self.added.append(_reservation(change, named, value))
        else:
            return False
        return True

    async def completed(self, bus: Bus, trial: TrialPolicy) -> TrialPolicy:
        """Return the policy on trial, with the changes applied to the priority classes and reservations in
        the databases.
        """
        if self.priorities:
            trial = structs.replace(trial, priorities=await self._classes(bus))
        ids = [each.id for name in self.removed for each in (await reservation_named(bus, name)).reservations]
        return structs.replace(trial, without_reservations=tuple(ids), reserves=tuple(self.added))

    async def _classes(self, bus: Bus) -> tuple[PriorityClass, ...]:
        stored = (await bus.asker(PRIORITIES)(FindPriorities())).classes
        classes = {each.name: each for each in stored}
        for name, options in self.priorities.items():
            if name not in classes and "value" not in options:
                raise BadSetting(f"--with priority.{name}: there is no such class, so give its value as well")
            before = classes.get(name, PriorityClass(name=name, value=0))
            classes[name] = structs.replace(before, **options)
        values = Counter(each.value for each in classes.values())
        for name in self.priorities:
            if values[value := classes[name].value] > 1:
                raise BadSetting(f"--with priority.{name}: another class has the value {value}")
        return tuple(classes.values())


def _option(change: str, option: str, value: str) -> int:
    if option not in _TYPES:
        raise BadSetting(f"--with {change}: only value, preempts and budget decide which requests get hosts")
    try:
        found = msgspec.json.decode(value, type=_TYPES[option])
    except msgspec.DecodeError:
        wanted = "true or false" if _TYPES[option] is bool else "a whole number"
        raise BadSetting(f"--with {change}: {value!r} is not {wanted}") from None
    if found < 0 or (option == "value" and found > _MOST_PRIORITY):
        raise BadSetting(f"--with {change}: {found} is out of range")
    return found


def _reservation(change: str, name: str, value: str) -> BuildRequested:
    """Return a reservation such as `10xVCPU:8,MEMORY_MB:16384,TRAIT` as a request for its slots."""
    try:
        flavor = parse_flavor(value)
    except ValueError as problem:
        raise BadSetting(f"--with {change}: {problem}") from None
    if flavor.parts > MOST_INSTANCES:
        raise BadSetting(f"--with {change}: at most {MOST_INSTANCES} slots")
    specs = [f"resources:{resource}={amount}" for resource, amount in sorted(flavor.amounts.items())]
    specs += [f"trait:{trait}=required" for trait in sorted(flavor.required)]
    specs += [f"trait:{trait}=forbidden" for trait in sorted(flavor.forbidden)]
    sizes = BootOptions(vcpus=0, memory_mb=0, disk_gb=0, extra_spec=tuple(specs), count=flavor.parts)
    request = boot_request(sizes)
    return structs.replace(
        request,
        request=str(uuid5(NAMESPACE_OID, change)),  # always the same id, because it selects among equal hosts
        alternates=0,
        flavor=structs.replace(request.flavor, name=name),
    )
