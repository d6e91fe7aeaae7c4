"""One request on its way to its hosts."""

from collections.abc import Sequence

import msgspec

from bus.errors import Poison, Retry
from bus.messages import BuildPlaced, BuildRequested, BuildUnplaceable
from bus.vocabulary import (
    BuildSpec,
    Choice,
    Claimed,
    ConsumerClaim,
    Decision,
    Held,
    Id,
    Moved,
    NoGroup,
    Refusal,
    Selection,
)
from scheduler_worker.core.funnel import MAX_REASON, MAX_REFUSED, Funnel
from scheduler_worker.core.held import ClaimPlace
from scheduler_worker.core.host import Host, selection_of
from scheduler_worker.core.ranking import HostChoice, Pick, Ranking
from scheduler_worker.pending import PendingChoice

MAX_CHOICES = 600  # in all claims of an order together: a message has an end
MAX_CHOICES_EACH = 64  # in one of its claims
MAX_METADATA_BYTES = 64 * 1024
MAX_SPEC_BYTES = 256 * 1024  # what is built travels on with the hosts and the decision: they must fit as well
MAX_SPECS_BYTES = 16 * 1024 * 1024  # it does so once for each instance

_encode = msgspec.json.Encoder().encode

Verdict = Sequence[BuildPlaced | BuildUnplaceable] | Retry | Poison


class Order:
    """What is still to be placed of a request, what was chosen for it, and what is to be said of it."""

    def __init__(self, request: BuildRequested) -> None:
        self.request = request
        self.instances: list[Id] = list(dict.fromkeys(request.instances))  # those without a host yet
        self.picks: list[Pick] = []  # one for each of these, in order
        self.entries: list[PendingChoice] = []  # and what is pending of them
        self.funnel = Funnel()
        self.avoid: set[str] = set()  # providers that were full or gone when we wanted them
        self.refused: list[str] = []
        self.obstacle = ""  # why it has no host yet
        self.reason = ""  # why it has none for good: what is left of it is to be fenced and ends
        self.again: Retry | Poison | None = None
        self._decision = Decision()
        self._placed: list[BuildPlaced] = []
        self._fenced: list[Id] = []
        self._spec = BuildSpec(
            flavor=request.flavor,
            image=request.image,
            project=request.project,
            user=request.user,
            metadata=request.metadata,
        )
        size = len(_encode(self._spec))
        self.bytes = size * len(self.instances)  # about as much is said in the end
        too_much = _too_much(request, size, self.bytes)
        if too_much:  # said before anything is claimed
            self.bytes = 0
            self.fail(too_much)

    @property
    def open(self) -> bool:
        """Is there something to find a host for?"""
        return bool(self.instances) and not self.reason and self.again is None

    @property
    def ready(self) -> bool:
        return len(self.picks) == len(self.instances)

    @property
    def verdict(self) -> Verdict:
        if self.again is not None:
            return self.again
        if not self._fenced:
            return self._placed
        ended = BuildUnplaceable(
            request=self.request.request,
            instances=tuple(self._fenced),
            reason=self.reason,
            decision=self._decision,
            reply_to=self.request.reply_to,
        )
        return [*self._placed, ended]

    @property
    def refusals(self) -> tuple[str, ...]:
        return tuple(self.refused[-MAX_REFUSED:])

    def pick(self, ranking: Ranking, several: int) -> list[Pick]:
        """Take hosts from a page for the instances that have none; the new picks."""
        most = max(1, MAX_CHOICES // len(self.instances))
        new: list[Pick] = []
        while len(self.picks) < len(self.instances):
            pick = ranking.take(min(several, most), self.avoid, min(most, MAX_CHOICES_EACH))
            if pick is None:
                break
            self.picks.append(pick)
            new.append(pick)
        return new

    def put_back(self) -> None:
        """Some of its instances have no host, so the hosts of the others are free for whoever comes next."""
        for ranking in {id(pick.ranking): pick.ranking for pick in self.picks}.values():
            ranking.put_back([pick for pick in self.picks if pick.ranking is ranking])
        self.picks = []

    def claims(self) -> tuple[ConsumerClaim, ...]:
        """All or none of the instances, each on the first of its hosts that fits."""
        request = self.request
        return tuple(
            ConsumerClaim(
                consumer=instance,
                generation=None,
                choices=tuple([Choice(way.allocations, way.shapes) for _, way in pick.choices]),
                project=request.project,
                user=request.user,
            )
            for instance, pick in zip(self.instances, self.picks, strict=True)
        )

    def turned_down(self, pick: Pick, refusals: Sequence[Refusal]) -> None:
        """Remember what placement refused. What only changed is tried again; what is full comes last."""
        for (host, _), refusal in zip(pick.choices, refusals, strict=False):
            self.refused.append(f"{host.candidate.host}: {refusal}")
            if not isinstance(refusal, Moved | NoGroup):
                self.avoid.add(refusal.provider)

    def place(self, instance: Id, choice: HostChoice, pick: Pick, claimed: Claimed, beside: set[str]) -> None:
        """This instance has its host."""
        request, (host, way) = self.request, choice
        self.turned_down(pick, claimed.refused)
        spares = pick.ranking.alternates(way.cell, request.alternates, beside, self.avoid)
        scores = pick.ranking.scores(host) if claimed.choice else pick.scores
        self._placed.append(
            BuildPlaced(
                build=instance,
                request=request.request,
                cell=way.cell,
                chosen=selection_of(way),
                generation=claimed.generation,
                alternates=self._selections(spares),
                spec=self._spec,
                decision=self.funnel.decision(scores, self.refusals),
                reply_to=request.reply_to,
            )
        )

    def place_again(self, instance: Id, held: Held, place: ClaimPlace) -> None:
        """It holds its host already, so say that again, with spares as they are now."""
        chosen = Selection(
            root=place.root, host=place.host, agent=place.agent, choice=Choice(held.allocations)
        )
        spares: list[Host] = []
        for ranking in self.funnel.rankings:
            several = self.request.alternates - len(spares)
            spares += ranking.alternates(place.cell, several, {chosen.root}, self.avoid)
        self._placed.append(
            BuildPlaced(
                build=instance,
                request=self.request.request,
                cell=place.cell,
                chosen=chosen,
                generation=held.generation,
                alternates=self._selections(spares),
                spec=self._spec,
                decision=Decision(considered=self.funnel.considered),
                reply_to=self.request.reply_to,
            )
        )

    def fail(self, reason: str) -> None:
        """No host, for good."""
        self.reason = reason[:MAX_REASON]
        self._decision = self.funnel.decision(refused=self.refusals)

    def fenced(self, instance: Id, reason: str) -> None:
        """It is retired: whoever still works on it will never place it. The request ends for that reason."""
        self.reason = reason[:MAX_REASON]
        self._fenced.append(instance)

    def _selections(self, spares: Sequence[Host]) -> tuple[Selection, ...]:
        return tuple([selection_of(spare.ways_now(self.avoid)[0]) for spare in spares])


def _too_much(request: BuildRequested, size: int, together: int) -> str:
    """Why this cannot be carried to its agents, naming the field; empty when it can."""
    metadata = len(_encode(request.metadata)) if size > MAX_METADATA_BYTES else 0
    if metadata > MAX_METADATA_BYTES:
        return f"metadata: {metadata} bytes, at most {MAX_METADATA_BYTES}"
    if size > MAX_SPEC_BYTES:
        return f"flavor, image and metadata: {size} bytes together, at most {MAX_SPEC_BYTES} can be built"
    if together > MAX_SPECS_BYTES:
        return (
            f"instances: {len(request.instances)} of them, with {size} bytes of flavor, image and metadata"
            f" each, are {together} bytes in all, at most {MAX_SPECS_BYTES} in one request"
        )
    return ""
