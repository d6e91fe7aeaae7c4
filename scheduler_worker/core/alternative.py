"""One way to meet a request: what placement is asked for it, and what rules and weighers read of it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from bus.groups import ServerGroup
from bus.messages import BuildRequested
from bus.queries import FindCandidates
from bus.requests import Flavor

# Fields that belong to one request only. The request in a `Wish` lacks them, because equal requests share it.
ITS_OWN: Mapping[str, Any] = {"request": "", "instances": (), "reply_to": ""}


def as_anybodys(request: BuildRequested) -> BuildRequested:
    return msgspec.structs.replace(request, **ITS_OWN)


@dataclass(frozen=True, slots=True)
class Together:
    """So many of a request are to be on one host, and it is open which."""

    several: int
    asked: Mapping[str, int]  # what all of them take of a host's own tree


@dataclass(frozen=True, slots=True)
class Alternative:
    """A request has one, and one more for each flavor that would do instead (`or_else`), in their order."""

    request: BuildRequested  # without the fields of a single request
    flavor: Flavor
    question: FindCandidates
    alternative_index: int = 0  # 0: the flavor asked for; n: the nth of or_else
    notes: tuple[str, ...] = ()  # what of the request means nothing here, one sentence each
    preferred: Mapping[str, float] = field(default_factory=dict)  # traits, the flavor's too, by how much
    group: ServerGroup | None = None  # the one it joins, as it was a moment ago: the claim judges
    members: Mapping[str, int] = field(default_factory=dict)  # root → how many of its group are there
    together: Together | None = None  # several instances of an affinity group without members on any host
    same: frozenset[str] | None = None  # roots of the instances of `same_host`; None: no such hint
    different: frozenset[str] = frozenset()  # roots of the instances of `different_host`
    own: frozenset[str] = frozenset()  # roots it holds already: a move's source
    reserved: frozenset[str] = frozenset()  # of `question.not_roots`: not excluded by the request itself
    # the reason for reserving one of the roots
    why_reserved: Callable[[str], str] = field(default=str, compare=False)

    @property
    def image_properties(self) -> Mapping[str, str]:
        return self.request.image.properties if self.request.image is not None else {}

    @property
    def pinned(self) -> frozenset[str]:
        """Return the roots that the request names, by host, by instance or by affinity group."""
        if self.question.roots:
            return frozenset(self.question.roots)
        if self.same is not None:
            return self.same
        affinity = self.group is not None and self.group.policy == "affinity"
        return frozenset(self.members) if affinity else frozenset()

    @property
    def asked(self) -> dict[str, int]:
        """Return the total amounts per class, from any provider of the host."""
        asked: dict[str, int] = {}
        for group in self.question.groups:
            for name, amount in group.resources.items():
                asked[name] = asked.get(name, 0) + amount
        return asked
