"""Changes of priority classes in the test of a policy, such as `priority.batch.preempts=true`."""

from collections import Counter
from collections.abc import Mapping

import msgspec
from msgspec import structs

from berth.kit import BadSetting
from bus.delivery.runner import Bus
from features.policies.decisions import RecordedDecision
from features.policies.stored_changes import ChangesPart, StoredChanges
from features.policies.with_preemption.subject import SUBJECT, encode
from features.preemption.messages import PRIORITIES, FindPriorities, PriorityClass

_MOST_PRIORITY = 9
_TYPES: Mapping[str, type[int]] = {"value": int, "budget": int, "preempts": bool}


class PriorityChanges(StoredChanges):
    subject = SUBJECT
    at_once = 4  # the search for instances to preempt takes longer

    def __init__(self) -> None:
        super().__init__()
        self.priorities: dict[str, dict[str, int]] = {}  # class → changed options

    def take(self, change: str) -> bool:
        name, _, value = change.partition("=")
        subject, _, named = name.partition(".")
        if subject != "priority" or "." not in named:
            return False
        called, _, option = named.rpartition(".")
        self.priorities.setdefault(called, {})[option] = _option(change, option, value)
        return True

    async def supposed(self, bus: Bus) -> str:
        """Return all priority classes, with the changes applied to the stored ones."""
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
        return encode(tuple(classes.values())).decode()

    def shows_in_record(self, decision: RecordedDecision) -> bool:
        return not decision.replaces


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


PART = ChangesPart(PriorityChanges, "priority.NAME.preempts=true (or .value=N, .budget=N)")
