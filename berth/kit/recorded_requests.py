"""Reconstructs the request of a build from the record of its cell."""

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import msgspec

from berth.features import messages
from bus.decisions import AlsoAsked
from bus.messages import BuildRequested
from bus.parts import PlacedPart, RequestPart
from bus.queries import BuildStands


def recorded_request(build: BuildStands) -> BuildRequested:
    """Reconstruct a build's request from the cell's record, with the flavor that was built."""
    placed, record = build.placed, build.placed.decision.record
    asked = (record.asked if record is not None else None) or AlsoAsked()
    fields = {name: getattr(asked, name) for name in AlsoAsked.__struct_fields__}
    for name in ("hints", "parts"):
        if fields[name] is None:
            del fields[name]
    spec = placed.spec
    request = BuildRequested(
        request=placed.request, instances=(placed.build,), flavor=spec.flavor, image=spec.image,
        project=spec.project, user=spec.user, alternates=0,
    )  # fmt: skip
    request = msgspec.structs.replace(request, **fields)
    made_of = _asked_by()
    asked_parts = [made_of[type(part)](part) for part in placed.parts if type(part) in made_of]
    return msgspec.structs.replace(request, parts=request.parts.having(*asked_parts))


@cache
def _asked_by() -> Mapping[type[PlacedPart], Callable[[Any], RequestPart]]:
    return {type_: made for part in messages() for type_, made in part.asked.items()}
