"""Converts the control room's form to the request that `berth what-if` would make."""

from berth.commands.builds import request_given
from berth.commands.name_resolution import resolved
from berth.commands.terminal import CommandRefused, checked
from berth.request_sense import sense_of
from berth.settings import BadSetting
from bus.delivery.runner import Bus
from bus.messages import BuildRequested
from control_room.core.what_if_form import WhatIfRequest
from control_room.operations import OperationRefused
from control_room.queries import NO_ANSWER


async def asked_for(bus: Bus, said: WhatIfRequest) -> tuple[BuildRequested, tuple[str, ...]]:
    """Return the request, and the fields without effect. Raise ActRefused for invalid input, or if a worker
    does not answer.
    """
    try:
        request, names = request_given(
            vcpus=said.vcpus,
            memory_mb=said.memory_mb,
            disk_gb=said.disk_gb,
            flavor="",
            extra_spec=list(said.extra_specs),
            or_else=None,
            image="",
            image_property=None,
            count=said.count,
            at_least=said.at_least,
            zone=said.zone,
            cell=said.cell,
            aggregate=[said.aggregates] if said.aggregates else None,
            not_aggregate=None,
            host=said.host,
            force_host="",
            ignore_host=list(said.avoid),
            group=said.group,
            hint=None,
            prefer_trait=None,
            project=said.project,
        )
        notes = sense_of(checked(request))
        return checked(await resolved(bus, request, names)), notes
    except (CommandRefused, BadSetting, *NO_ANSWER) as problem:
        raise OperationRefused(str(problem)) from None
