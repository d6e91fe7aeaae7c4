"""Reconstructs the request of a build from the record of its cell."""

import msgspec

from bus.decisions import AlsoAsked
from bus.messages import BuildRequested
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
    asked_parts = [part.asked for part in placed.parts if part.asked is not None]
    return msgspec.structs.replace(request, parts=request.parts.having(*asked_parts))
