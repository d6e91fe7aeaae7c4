"""What becomes of instances without a host: those that have one already are told where, the others end.

Nobody is told "no valid host" before placement has fenced the instance, so a twin delivery can never place
what this one has given up.
"""

import logging
from collections.abc import Sequence

from bus.clock import Clock
from bus.errors import AnswerRefused, Poison, Retry
from bus.messages import (
    BuildPlaced,
    BuildUnplaceable,
    FindProviders,
    ProvidersFound,
    ReleaseAnswered,
    ReleaseRequested,
)
from bus.protocol import Ask
from bus.resources import Provider
from bus.vocabulary import ClaimResult, Contended, Held, Id, Released, ReleaseResult, Retired
from scheduler_worker.at_once import together
from scheduler_worker.core.held import place_of
from scheduler_worker.order import Order
from scheduler_worker.waiting import LONGEST_PAUSE, Waiting

log = logging.getLogger(__name__)

PROVIDERS_ASKED = 500  # at a time
UNHEARD_SECONDS = 60.0  # for so long a build that nobody in its cell hears of is told again
UNHEARD = 50_000  # requests of which it is remembered since when

Unexpected = tuple[Order, Id, ClaimResult | ReleaseResult]  # and what placement said of it


class Ending:
    """Fences, gives back, and says where a claim is that was held before."""

    def __init__(
        self,
        release: Ask[ReleaseRequested, ReleaseAnswered],
        providers: Ask[FindProviders, ProvidersFound],
        waiting: Waiting,
        clock: Clock,
        unheard_for: float = UNHEARD_SECONDS,
    ) -> None:
        self._release = release
        self._providers = providers
        self._waiting = waiting
        self._clock = clock
        self._unheard_for = unheard_for
        self._unheard: dict[Id, float] = {}  # requests of which no conductor heard, and since when

    async def end(self, orders: Sequence[Order]) -> None:
        """Retire what has no host, so that no twin delivery can place it any more, and only then say so."""
        ending = [(order, instance) for order in orders for instance in order.instances]
        for order in orders:
            order.instances = []
        # `generation=None` gives nothing back: who holds a host keeps it.
        results = await together(
            [self._retire(order, instance, None, order.reason) for order, instance in ending]
        )
        elsewhere: list[Unexpected] = []
        for (order, instance), result in zip(ending, results, strict=True):
            if isinstance(result, Released):
                order.fenced(instance, order.reason)
            else:
                elsewhere.append((order, instance, result))
        await self.settle(elsewhere)

    async def _retire(self, order: Order, instance: Id, generation: int | None, why: str) -> ReleaseResult:
        """It is never to hold anything again, and gives back what it held at this generation."""
        question = ReleaseRequested(consumer=instance, generation=generation, retire=why, unplaceable=True)
        try:
            return (await self._release(question)).result
        except AnswerRefused as problem:
            order.again = Poison(f"{instance} cannot be fenced: {problem}")
            return Contended()

    async def settle(self, elsewhere: Sequence[Unexpected]) -> None:
        """What is to be said of instances that are not where we expected them."""
        held = [one for one in elsewhere if isinstance(one[2], Held)]
        providers = await self._look_up(held) if held else {}
        emptied: list[tuple[Order, Id, int]] = []
        for order, instance, result in elsewhere:
            match result:
                case Held(generation=generation) if not result.allocations:
                    emptied.append((order, instance, generation))
                case Held():
                    place = place_of(result, providers)
                    if place is None:
                        self._not_ours(order, instance, result)
                    else:
                        order.place_again(instance, result, place)
                case Retired():
                    self._retired(order, instance, result)
                case Contended():
                    self._waiting.contended(order, f"the claim of {instance} is contended")
                case _:  # it holds nothing and may be placed
                    order.instances.append(instance)
        await together([self._end_emptied(*one) for one in emptied])

    async def _look_up(self, held: Sequence[Unexpected]) -> dict[str, Provider]:
        """The providers of which these hold something, with who reports them."""
        ids = tuple(
            dict.fromkeys(
                provider for *_, result in held if isinstance(result, Held) for provider in result.allocations
            )
        )
        questions = [
            FindProviders(ids=ids[start : start + PROVIDERS_ASKED], parts=("traits", "owner"))
            for start in range(0, len(ids), PROVIDERS_ASKED)
        ]
        answers = [await self._providers(question) for question in questions]
        return {one.id: one for answer in answers for one in answer.providers}

    def _not_ours(self, order: Order, instance: Id, held: Held) -> None:
        """No scheduler has placed what holds this: its room is not ours to give back."""
        where = ", ".join(sorted(held.allocations))
        why = f"{instance} holds resources of {where} already, where no agent builds: it is no build of ours"
        log.warning("build %s: %s", instance, why)
        order.fenced(instance, why)

    async def _end_emptied(self, order: Order, instance: Id, generation: int) -> None:
        """Somebody gave back what it held, and did not say that it has ended."""
        why = f"what {instance} held was given back by somebody else"
        result = await self._retire(order, instance, generation, why)
        match result:
            case Released():
                log.warning("build %s: %s", instance, why)
                order.fenced(instance, why)
            case Retired():
                self._retired(order, instance, result)
            case _:
                self._waiting.contended(order, f"the claim of {instance} is contended")

    async def take_back(self, placed: BuildPlaced) -> BuildUnplaceable | None:
        """No conductor hears of it: for some time it comes again, then its claim is given back and it ends.

        How often its request came before says nothing: it may have waited for room.
        """
        now = self._clock.monotonic()
        left = self._unheard.setdefault(placed.request, now) + self._unheard_for - now
        if left > 0:
            while len(self._unheard) > UNHEARD:
                del self._unheard[next(iter(self._unheard))]
            raise Retry(
                after=min(left, LONGEST_PAUSE), why=f"no conductor of cell {placed.cell!r} hears of it"
            )
        host = placed.chosen.host
        why = f"cell {placed.cell!r}: no conductor takes builds there; the claim on {host} was given back"
        question = ReleaseRequested(
            consumer=placed.build, generation=placed.generation, retire=why, unplaceable=True
        )
        match (await self._release(question)).result:
            case Released():
                log.warning("build %s: %s", placed.build, why)
            case Retired(why=told, unplaceable=True):
                why = told
            case Retired():
                return None
            case _:
                raise Retry(after=LONGEST_PAUSE, why=f"the claim of {placed.build} is contended")
        return BuildUnplaceable(
            request=placed.request,
            instances=(placed.build,),
            reason=why,
            decision=placed.decision,
            reply_to=placed.reply_to,
        )

    def _retired(self, order: Order, instance: Id, result: Retired) -> None:
        """It has ended. Whoever else ended it has said so; what we ended is said again."""
        if result.unplaceable:
            order.fenced(instance, result.why)
