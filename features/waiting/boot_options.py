"""The option of build requests for a priority. The kernel's option --wait sets how long they wait."""

from dataclasses import dataclass

from msgspec import structs

from berth.kit import HOW_MANY, BootOptionsPart, option
from bus.delivery.runner import Bus
from bus.messages import BuildRequested
from control_room.kit import FormField, RequestField
from features.waiting.messages import WaitPart, priority_of

MOST_PRIORITY = 9


@dataclass(frozen=True, kw_only=True)
class PriorityOptions:
    priority: int = option(
        0, "9 is served first, before waiting requests of a lower priority.", min=0, max=9, panel=HOW_MANY
    )

    def requested(self, request: BuildRequested) -> BuildRequested:
        if not self.priority:
            return request
        part = structs.replace(request.parts.get(WaitPart) or WaitPart(), priority=self.priority)
        return structs.replace(request, parts=request.parts.having(part))

    async def resolved(self, bus: Bus, request: BuildRequested) -> BuildRequested:
        return request


PART = BootOptionsPart(
    PriorityOptions,
    (
        RequestField(
            FormField(name="priority", label="Priority, 0 to 9", number=True),
            lambda request: str(priority_of(request.parts) or ""),
            most=MOST_PRIORITY,
        ),
    ),
)
