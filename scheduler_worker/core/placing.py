"""Places one request, as a pure state machine: state and event → next state and effects.

    looking ─ chosen → claiming ─ all claimed ──────→ (more alternates, if some are missing) → published
       ↑ └── no host: the next flavor; retry later; wait; or retire the instances and publish the end
       ├── refused: the reservation is released, and refused hosts are avoided
       └── delivered before: instances with allocations are located and published again, the rest continue

A request is reported as unplaceable only after placement has retired its instances, so a second delivery
cannot place an instance that has ended. The state machine waits for the result of one effect at a time.
"""

from collections.abc import Sequence
from itertools import takewhile

from msgspec.structs import replace

from bus.claims import (
    Choice,
    Claimed,
    ClaimResult,
    Held,
    Refused,
    Released,
    ReleaseResult,
    Retired,
    RuleRefused,
)
from bus.decisions import RULE_ERROR, Decision
from bus.messages import Selection
from bus.moves import BEGUN
from bus.vocabulary import MAX_CAUSE, Contended, Id
from scheduler_worker.core import events
from scheduler_worker.core.events import Need
from scheduler_worker.core.gang_choice import is_gang
from scheduler_worker.core.held_claim import alternative_of, mappings_of, without_roots
from scheduler_worker.core.order import (
    Order,
    Settled,
    also_asked,
    ended,
    given_back,
    placed_before,
    refusals_of,
    selection_of,
    spares_of,
    without_placed,
)
from scheduler_worker.core.rejections import Shortage

ROUNDS = 5  # searches for one request without a pause
PATIENCE = 30.0  # seconds that a request waits for a temporary obstacle
LONGEST_PAUSE = 5.0  # maximum seconds between two searches of a waiting request
SOON = 0.1, 0.5
AT_ONCE = 0.05, 0.2

Step = tuple[Order, events.Effects]


def step(order: Order, event: events.Event, patience: float) -> Step:
    """Return an order's state and effects after an event; an order older than `patience` s is not retried."""
    match event:
        case events.Begun(refusal=""):
            return _next(order, patience)
        case events.Begun(refusal=refusal):
            return _next(_fail(order, refusal, Decision(code="unreadable")), patience)
        case events.Chosen(picks=(), short=short) if short is not None:
            return _no_host(replace(order, considered=short.considered), short, patience)
        case events.Chosen():
            index = event.alternative_index
            order = replace(
                order,
                alternative_index=order.alternative_index if index is None else index,
                picks=event.picks,
                victims=event.victims,
                rounds=order.rounds + 1,
                considered=event.picks[0].considered,
                shorts=() if event.short is None else (*order.shorts, event.short),
            )
            return order, (Need.CLAIMS,)
        case events.ClaimAnswers(results=results):
            return _claimed(order, results, patience)
        case events.ClaimImpossible(why=why):
            failed = _fail(replace(order, picks=()), why, Decision(code="claim"))
            return _also(_release_picks(order), _next(failed, patience))
        case events.Located():
            return _located(order, event, patience)
        case events.NoVictims(why=why):
            return _nowhere(replace(order, spares=why), patience)
        case events.FenceAnswers(results=fenced):
            return _fenced(order, fenced, patience)
        case events.FenceImpossible(why=why):
            return order, (events.DeadLetterRequest(why),)
        case events.HelpFound(helps=helps):
            order = replace(order, decision=replace(order.decision, helps=helps), unexplained=False)
            return _next(order, patience)
        case events.AlternatesFound(spares=spares):
            settled = [
                replace(settled, spares=(*settled.spares, *spares.get(settled.instance, ())), lacking=0)
                for settled in order.settled
            ]
            return _next(replace(order, settled=tuple(settled)), patience)


def _next(order: Order, patience: float) -> Step:
    if order.held:
        return order, (Need.PLACES,)
    if order.emptied:
        return order, (Need.FENCES,)
    if order.instances and order.reason:
        if order.unexplained:
            return order, (Need.REMEDIES,)
        if not order.is_external:
            return order, (Need.FENCES,)
        order = replace(order, fenced=(*order.fenced, *order.instances), instances=())
    if order.instances:
        return (order, (Need.HOSTS,)) if order.rounds < ROUNDS else _obstructed(order, patience)
    if any(settled.lacking for settled in order.settled):
        return order, (Need.ALTERNATES,)
    if order.move is not None:
        message = order.move_message(order.move)
        return order, (events.BegunBefore() if order.begun else events.PublishMove(message),)
    return order, (events.PublishEnds(tuple(order.messages())),)


def _no_host(order: Order, short: Shortage, patience: float) -> Step:
    """Try the order's next flavor; if all flavors have been tried, let the order wait, retry or fail."""
    if short.code == RULE_ERROR:  # no other flavor, preemption or wait helps
        return _next(_fail(order, short.refusal, short.decision(order.refusals)), patience)
    draw = order.alternative.draw
    if draw is None or not draw.optional:
        order = replace(order, shorts=(*order.shorts, short))
    if order.following_index < len(order.alternatives):
        return replace(order, alternative_index=order.following_index), (Need.HOSTS,)
    obstacle, shorts = order.why_no_host(), order.shorts
    decision = shorts[0].decision(order.refusals)
    order = replace(order, alternative_index=0, obstacle=obstacle, decision=decision)
    if order.preempts is not None and not order.sought and not order.is_external and order.reserves is None:
        return replace(order, sought=True), (Need.VICTIMS,)
    return _nowhere(order, patience)


def _nowhere(order: Order, patience: float) -> Step:
    """Let an order wait, retry or fail after all its flavors, and preemption if allowed, have been tried."""
    obstacle, shorts = order.obstacle, order.shorts
    if order.spares:
        obstacle = f"{obstacle}; no preemption: {order.spares}"
    order = replace(order, rounds=order.rounds + 1, shorts=(), obstacle=obstacle)
    if not 0 < order.request.at_least <= len(order.settled):  # once `at_least` are placed, the rest fail
        reserved = any(shortage.is_reserved for shortage in shorts)
        if reserved and order.rounds < ROUNDS:
            return order, (Need.HOSTS,)
        if order.request.wait:
            return order, (events.Park(shorts, obstacle),)
        # Capacity reserved for claims of other requests is free again if the claims fail.
        if reserved or any(shortage.may_pass for shortage in shorts):
            return _obstructed(order, patience)
    readable = not any(short.refusal for short in shorts)
    return _next(replace(_fail(order, obstacle, order.decision), unexplained=readable), patience)


def _obstructed(order: Order, patience: float) -> Step:
    if order.request.wait:
        return order, (events.Park((), order.obstacle),)
    if order.waited >= patience:
        considered = order.decision.considered or order.considered
        code = order.decision.code or "refused"
        decision = replace(order.decision, considered=considered, refused=order.refusals, code=code)
        failed = _fail(order, order.obstacle, decision)
        return _next(replace(failed, unexplained=bool(decision.removals)), patience)
    return order, (events.ComeAgain(*SOON, order.obstacle),)


def _contended(order: Order, patience: float, why: str) -> events.Effects:
    if order.waited < patience:
        return (events.ComeAgain(*AT_ONCE, why),)
    waited = f"request {order.request.request} has waited {order.waited:.0f} s: {why}"
    return events.Warn(waited), events.ComeAgain(LONGEST_PAUSE, LONGEST_PAUSE, why)


def _fail(order: Order, reason: str, decision: Decision) -> Order:
    return replace(order, reason=reason[:MAX_CAUSE], decision=decision)


def _claimed(order: Order, results: Sequence[ClaimResult], patience: float) -> Step:
    picks = order.picks
    claimed = [result for result in results if isinstance(result, Claimed)]
    if len(claimed) == len(picks):
        return _settle(order, claimed, patience)
    if fewer := _permitted(order, results):
        left_out = list(zip(order.picks, order.instances, strict=False))[fewer:]
        order = replace(order, picks=picks[:fewer], victims=order.victims[:fewer])
        return order, (*(events.ReleaseHost(*pair) for pair in left_out), Need.CLAIMS)
    released, order = _release_picks(order), replace(order, picks=())
    if any(isinstance(result, Held | Retired) for result in results):
        if order.move is not None:
            return _also(released, _outdated(order, results[0], patience))
        return _also(released, _next(without_placed(order, results), patience))
    avoid, refused = set(order.avoid), list(order.refused)
    for pick, result in zip(picks, results, strict=False):
        if isinstance(result, Contended):
            return order, (*released, *_contended(order, patience, "its claim is contended"))
        if isinstance(result, Refused):
            for refusal in _of_rules(result):
                if refusal.wakes_on:
                    return _also(released, _refused_for_now(order, refusal, patience))
                if refusal.final and order.victims:  # only the preemption cannot succeed
                    order = replace(order, preempts=None, spares=refusal.why)
                elif refusal.final:
                    order = _fail(order, refusal.why, Decision(code=refusal.code))
                    return _also(released, _next(order, patience))
            texts, providers = refusals_of(pick, result.refusals)
            refused += [text for text in texts if text not in refused]
            avoid |= providers
    order = replace(order, avoid=frozenset(avoid), refused=tuple(refused), alternative_index=0, shorts=())
    order = replace(order, sought=False)
    obstacle = f"every host that would do was refused when it was claimed: {'; '.join(order.refusals)}"
    return _also(released, _next(replace(order, obstacle=obstacle), patience))


def _of_rules(result: Refused) -> list[RuleRefused]:
    return [refusal for refusal in result.refusals if isinstance(refusal, RuleRefused)]


def _permitted(order: Order, results: Sequence[ClaimResult]) -> int:
    """Return how many of the chosen instances could be claimed without the others, if fewer instances are
    enough (`at_least`), and the others were refused only by rules that may permit them later; else 0.
    """
    if not order.request.at_least or is_gang(order):
        return 0
    refused = [result for result in results if isinstance(result, Refused)]
    refusals = [refusal for result in refused for refusal in result.refusals]
    passing = [refusal for refusal in refusals if isinstance(refusal, RuleRefused) and refusal.wakes_on]
    if not passing or len(passing) < len(refusals) or len(refused) < len(results):
        return 0
    most = sum(1 for _ in takewhile(lambda result: not result.refusals, refused))
    return most if order.needed <= most < len(order.picks) else 0


def _refused_for_now(order: Order, refusal: RuleRefused, patience: float) -> Step:
    if order.request.wait and not 0 < order.request.at_least <= len(order.settled):
        return order, (events.Park((), refusal.why, refusal),)
    decision = Decision(code=refusal.code, considered=order.considered)
    return _next(_fail(order, refusal.why, decision), patience)


def _release_picks(order: Order) -> events.Effects:
    return tuple([events.ReleaseHost(*pair) for pair in zip(order.picks, order.instances, strict=False)])


def _also(before: events.Effects, then: Step) -> Step:
    order, effects = then
    return order, (*before, *effects)


def _outdated(order: Order, result: ClaimResult, patience: float) -> Step:
    """Decide what follows a move's refused claim: retry if another client changed allocations; fail if the
    build ended.
    """
    match result:
        case Retired(why=why, unplaceable=False) if why != BEGUN:  # the build, not the move, has ended
            return _next(_fail(order, f"it has ended: {why}", Decision(code="status")), patience)
        case Retired():
            [instance] = order.instances
            return _next(placed_before(replace(order, instances=()), instance, result), patience)
        case _:
            differ = "its allocations differ from the record of its cell"
            why = f"{differ}: it moves, or another client changed them"
            if order.waited < patience:
                return order, (events.ComeAgain(*SOON, why),)
            return _next(_fail(order, why, Decision(code="held")), patience)


def _settle(order: Order, claimed: Sequence[Claimed], patience: float) -> Step:
    picks, request = order.picks, order.request
    ways = [pick.choices[result.choice] for pick, result in zip(picks, claimed, strict=True)]
    avoid, refused = set(order.avoid), list(order.refused)
    settled = [*order.settled]
    effects: list[events.Effect] = []
    asked = also_asked(request)
    victims = order.victims or ((),) * len(picks)
    for instance, pick, way, result, replaced in zip(
        order.instances, picks, ways, claimed, victims, strict=False
    ):
        if result.refused:
            texts, providers = refusals_of(pick, result.refused)
            refused += texts
            avoid |= providers
        spares, lacking = pick.spares, 0
        if result.choice or avoid or len(picks) > 1:
            excluding = order.settled_roots.union([candidate.root for candidate in ways])
            if is_gang(order):  # alternates of a gang may be hosts of its other instances
                excluding = frozenset({way.root})
            spares = spares_of(pick, way, excluding, avoid, order.alternates)
            if result.choice or len(spares) < len(pick.spares):
                lacking = order.alternates - len(spares)
        draw = order.alternatives[order.index_for(instance)].draw
        if order.victims or (draw is not None and draw.optional):
            lacking = order.alternates
        settled.append(
            Settled(
                instance=instance,
                cell=way.cell,
                chosen=selection_of(way),
                generation=result.generation,
                decision=pick.decision(way.root, tuple(refused[-16:]), asked),
                alternative_index=order.index_for(instance),
                spares=spares,
                lacking=lacking,
                victims=replaced,
            )
        )
        effects.append(events.ReserveHost(pick, way, result.number, instance))
    short = order.shorts
    order = replace(order, instances=order.instances[len(picks) :], picks=(), settled=tuple(settled))
    if avoid or refused:
        order = replace(order, avoid=frozenset(avoid), refused=tuple(refused))
    if order.instances and short:  # instances without a host try the next flavor
        return _also(tuple(effects), _no_host(replace(order, shorts=short[:-1]), short[-1], patience))
    return _also(tuple(effects), _next(order, patience))


def _located(order: Order, event: events.Located, patience: float) -> Step:
    """Publish again the results of instances that already hold a host, with newly chosen alternates."""
    effects: list[events.Effect] = []
    holding, order = order.held, replace(order, held=())
    for instance, result in holding:
        place = event.places.get(instance)
        if place is None and order.move is not None:  # its agent has not reported since a restart
            return order, (events.ComeAgain(LONGEST_PAUSE, LONGEST_PAUSE, "no agent is at its destination"),)
        if place is None:  # no scheduler placed this consumer: its allocations must not be released
            where = ", ".join(sorted(result.allocations))
            held = f"{instance} holds resources of {where} already"
            why = f"{held}, where no agent builds: it is no build of ours"
            effects.append(events.Warn(f"build {instance}: {why}"))
            order = ended(order, instance, why)
            continue
        if order.is_external:  # the consumer of an evacuated instance holds the source host, too
            result = replace(result, allocations=without_roots(result, place, order.excluded_roots))
        alternative_index = alternative_of(result, order.alternatives)
        if order.request.roles and order.alternatives:
            alternative_index = order.index_for(instance)
        question = order.alternatives[alternative_index].question if order.alternatives else None
        groups = mappings_of(result.allocations, question, place.providers, place.root) if question else {}
        again = Settled(
            instance=instance,
            cell=place.cell,
            chosen=Selection(
                root=place.root,
                host=place.host,
                agent=place.agent,
                choice=Choice(result.allocations),
                mappings=groups,
            ),
            generation=result.generation,
            decision=Decision(considered=order.considered),
            alternative_index=alternative_index,
            lacking=order.alternates if order.alternatives else 0,
            victims=event.victims.get(instance, ()),
        )
        order = replace(order, settled=(*order.settled, again))
    return _also(tuple(effects), _next(order, patience))


def _fenced(order: Order, results: Sequence[tuple[Id, ReleaseResult]], patience: float) -> Step:
    emptied = {instance for instance, _ in order.emptied}
    left = tuple([instance for instance in order.instances if instance not in dict(results)])
    order = replace(order, emptied=(), instances=left)
    effects: list[events.Effect] = []
    for instance, result in results:
        match result:
            case Released() if instance in emptied:
                effects.append(events.Warn(f"build {instance}: {given_back(instance)}"))
                order = ended(order, instance, given_back(instance))
            case Released():
                order = ended(order, instance, order.reason)
            case Retired():
                order = placed_before(order, instance, result)
            case Held() if instance not in emptied:
                order = placed_before(order, instance, result)
            case _:
                contended = _contended(order, patience, f"the claim of {instance} is contended")
                return order, (*effects, *contended)
    return _also(tuple(effects), _next(order, patience))
