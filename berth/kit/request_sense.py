"""Checks a build request before its publication, and refuses a request that no scheduler can satisfy."""

import math
from collections import Counter
from collections.abc import Sequence

from msgspec.structs import replace

from berth.features import request_readers
from berth.settings import BadSetting
from bus.messages import BuildRequested
from scheduler_worker import RequestOptions, Unreadable, alternatives_of
from scheduler_worker.core.rule import Alternative

_EVERYWHERE = RequestOptions(readers=request_readers(), max_wait=math.inf, unscoped=True)


def sense_of(request: BuildRequested) -> tuple[str, ...]:
    """Raise BadSetting if no cloud could satisfy the request; return notes about parts that berth ignores."""
    try:
        alternatives = _alternatives(request)
    except Unreadable as problem:
        raise BadSetting(str(problem)) from None
    return tuple(dict.fromkeys(note for alternative in alternatives for note in alternative.notes))


def asked_amounts(request: BuildRequested) -> Counter[str]:
    """Return the amounts of all instances of a request by resource class; empty if no cloud satisfies it."""
    sections = [(section.flavor, section.count) for section in request.parts.sections]
    alone = request.parts.without(*[type(part) for part in request.parts if part.sections])
    total = Counter[str]()
    for flavor, count in sections or [(request.flavor, len(request.instances))]:
        try:
            asked = _alternatives(replace(request, flavor=flavor, parts=alone, or_else=()))[0].asked
        except Unreadable:
            return Counter()
        total.update({name: amount * count for name, amount in asked.items()})
    return total


def _alternatives(request: BuildRequested) -> Sequence[Alternative]:
    anywhere = replace(request, forced_host="", wanted_host="", ignore_hosts=())
    return alternatives_of(anywhere, _EVERYWHERE, lambda host: ())
