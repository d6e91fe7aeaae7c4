"""The option of build requests for a server group."""

from dataclasses import dataclass

from msgspec import structs

from berth.kit import WHERE, BadSetting, BootOptionsPart, option
from bus.delivery.runner import Bus
from bus.messages import BuildRequested
from control_room.kit import FormField, RequestField
from features.groups.lookup import group_named
from features.groups.messages import GroupPart, group_of


@dataclass(frozen=True, kw_only=True)
class GroupOptions:
    group: str = option(
        "", "The server group they join (`berth instance group`).", metavar="NAME|UUID", panel=WHERE
    )

    def requested(self, request: BuildRequested) -> BuildRequested:
        """Return the request; raise BadSetting if options and hints both name a group."""
        if self.group and group_of(request.parts):
            raise BadSetting("--group and --hint group= both name a group")
        return request

    async def resolved(self, bus: Bus, request: BuildRequested) -> BuildRequested:
        """Return the request as a member of the group that the option names."""
        if not self.group:
            return request
        joined = (await group_named(bus, self.group, request.project)).id
        return structs.replace(request, parts=request.parts.having(GroupPart(group=joined)))


PART = BootOptionsPart(
    GroupOptions,
    (
        RequestField(
            FormField(name="group", label="Server group, name or id"),
            lambda request: group_of(request.parts) or "",
        ),
    ),
)
