"""Places one request, as a pure state machine: state and event → next state and effects.

    searching ── chosen ──→ claiming ── all claimed ──→ (more alternates, if some are missing) ──→ published
        ↑                      │
        │                      ├── refused: the choice is released, and refused hosts are avoided
        │                      └── delivered before: instances with allocations are located and published
        │                          again, the others continue
        └── no host: the next flavor; retry later; wait; or retire the instances and publish the end

A request is reported as unplaceable only after placement has retired its instances, so a second delivery
cannot place an instance that has ended. The state machine waits for the result of one effect at a time.
"""

from collections.abc import Sequence
from itertools import takewhile

from msgspec.structs import replace

from bus.claims import Claimed, ClaimResult, Held, Refused, Released, ReleaseResult, Retired, RuleRefused
from bus.decisions import RULE_ERROR, Decision
from bus.vocabulary import Contended, Id
from scheduler_worker.core import events
from scheduler_worker.core.events import Need
from scheduler_worker.core.order import (
    ROUNDS,
    EndedInstance,
    Order,
    Settled,
    failed,
    further_constraints,
    refusals_of,
    selection_of,
    usable_alternates,
    why_released,
    with_ended,
)
from scheduler_worker.core.shortage import Shortage

PATIENCE = 30.0  # seconds that a request waits for a temporary obstacle
LONGEST_PAUSE = 5.0  # maximum seconds between two searches of a waiting request
SOON = 0.1, 0.5
AT_ONCE = 0.05, 0.2

Step = tuple[Order, events.Effects]


def step(order: Order, event: events.Event, patience: float) -> Step:
    """Return an order's state and effects after an event; an order older than `patience` s is not retried."""
    match event:
        case events.Started() if order.verdict.invalid:
            return _proceed(failed(order, order.verdict.invalid, Decision(code="unreadable")), patience)
        case events.Started():
            return _proceed(order, patience)
        case events.Chosen(picks=(), short=short) if short is not None:
            tried = replace(order.tried, considered=short.considered)
            return _no_host(replace(order, tried=tried), short, patience)
        case events.Chosen():
            return _chosen(order, event), (Need.CLAIMS,)
        case events.ClaimAnswers(results=results):
            return _claimed(order, results, patience)
        case events.ClaimImpossible(why=why):
            without_picks = failed(replace(order, picks=()), why, Decision(code="claim"))
            return _after(_release_picks(order), _proceed(without_picks, patience))
        case events.Located():
            return _located(order, event, patience)
        case events.Passed():
            return _without_help(order, patience)
        case events.FenceAnswers(results=fenced):
            return _fenced(order, fenced, patience)
        case events.FenceImpossible(why=why):
            return order, (events.DeadLetterRequest(why),)
        case events.HelpFound(helps=helps):
            decision = replace(order.verdict.decision, helps=helps)
            verdict = replace(order.verdict, decision=decision, lacks_remedies=False)
            return _proceed(replace(order, verdict=verdict), patience)
        case events.AlternatesFound(alternates=alternates):
            settled = [
                replace(each, alternates=(*each.alternates, *alternates.get(each.instance, ())), lacking=0)
                for each in order.settled
            ]
            return _proceed(replace(order, settled=tuple(settled)), patience)


def _proceed(order: Order, patience: float) -> Step:
    """Return an order with what it needs next, or with its end."""
    if order.found:
        return order, (Need.PLACES if order.held_before() else Need.FENCES,)
    if order.instances and order.verdict.reason:
        if order.verdict.lacks_remedies:
            return order, (Need.REMEDIES,)
        if order.purpose.retires:
            return order, (Need.FENCES,)
        without_host = [EndedInstance(instance, order.verdict.reason) for instance in order.instances]
        order = replace(order, ended=(*order.ended, *without_host), instances=())
    if order.instances:
        if order.tried.rounds < ROUNDS:
            return order, (Need.HOSTS,)
        return replace(order, verdict=replace(order.verdict, shortages=(), is_reserved=False)), (
            Need.FALLBACKS,
        )
    if any(settled.lacking for settled in order.settled):
        return order, (Need.ALTERNATES,)
    return order, (events.Publish(tuple(order.purpose.ends(order))),)


def _chosen(order: Order, event: events.Chosen) -> Order:
    tried, shortages = order.tried, order.verdict.shortages
    order = replace(
        order,
        attempt=order.attempt if event.attempt is None else event.attempt,
        picks=event.picks,
        tried=replace(tried, rounds=tried.rounds + 1, considered=event.picks[0].considered),
    )
    if shortages or event.short is not None:
        shortages = () if event.short is None else (*shortages, event.short)
        order = replace(order, verdict=replace(order.verdict, shortages=shortages))
    return order


def _no_host(order: Order, short: Shortage, patience: float) -> Step:
    """Begin the order's next attempt; after the last attempt, let the order wait, retry or fail."""
    latest = order.tried.latest_refusals
    if short.code == RULE_ERROR:  # no other flavor and no fallback helps
        return _proceed(failed(order, short.refusal, short.decision(latest)), patience)
    verdict = order.verdict
    if short.optional:
        verdict = replace(verdict, is_reserved=verdict.is_reserved or short.is_reserved)
    else:
        verdict = replace(verdict, shortages=(*verdict.shortages, short))
    if not order.is_last_attempt:
        return replace(order, verdict=verdict, attempt=order.attempt + 1), (Need.HOSTS,)
    order = replace(order, verdict=verdict, attempt=0)
    decision = verdict.shortages[0].decision(latest)
    order = replace(order, verdict=replace(verdict, obstacle=order.why_no_host(), decision=decision))
    return order, (Need.FALLBACKS,)


def _without_help(order: Order, patience: float) -> Step:
    """Retry an order or let it fail after all its attempts have failed, and no fallback handles it."""
    verdict = order.verdict
    if verdict.reason:  # a fallback has ended it
        return _proceed(order, patience)
    if verdict.refusal is not None:
        decision = Decision(code=verdict.refusal.code, considered=order.tried.considered)
        return _proceed(failed(order, verdict.refusal.why, decision), patience)
    return _nowhere(order, patience) if verdict.shortages else _obstructed(order, patience)


def _nowhere(order: Order, patience: float) -> Step:
    """End a round in which no attempt found enough hosts: search again, come again later, or fail."""
    obstacle, shortages = order.verdict.obstacle, order.verdict.shortages
    is_reserved, is_searched_again = order.is_reserved, order.is_searched_again
    order = replace(
        order,
        tried=replace(order.tried, rounds=order.tried.rounds + 1),
        verdict=replace(order.verdict, shortages=(), is_reserved=False),
    )
    if not order.has_enough:
        if is_searched_again:
            return order, (Need.HOSTS,)
        # Capacity reserved for claims of other requests is free again if the claims fail.
        if is_reserved or any(short.may_pass for short in shortages):
            return _obstructed(order, patience)
    readable = not any(short.refusal for short in shortages)
    return _proceed(failed(order, obstacle, order.verdict.decision, lacks_remedies=readable), patience)


def _obstructed(order: Order, patience: float) -> Step:
    """Let an order come again after a temporary obstacle; fail it after its patience."""
    obstacle, tried = order.verdict.obstacle, order.tried
    if order.times.retried_for >= patience:
        decision = order.verdict.decision
        decision = replace(
            decision,
            considered=decision.considered or tried.considered,
            refused=tried.latest_refusals,
            code=decision.code or "refused",
        )
        order = failed(order, obstacle, decision, lacks_remedies=bool(decision.removals))
        return _proceed(order, patience)
    return order, (events.ComeAgain(*SOON, obstacle),)


def _contended(order: Order, patience: float, why: str) -> events.Effects:
    retried_for = order.times.retried_for
    if retried_for < patience:
        return (events.ComeAgain(*AT_ONCE, why),)
    waited = f"request {order.request.request} has waited {retried_for:.0f} s: {why}"
    return events.Warn(waited), events.ComeAgain(LONGEST_PAUSE, LONGEST_PAUSE, why)


def _claimed(order: Order, results: Sequence[ClaimResult], patience: float) -> Step:
    """Handle the results of an order's claims: settle its instances, claim fewer, search again or fail."""
    picks = order.picks
    claimed = [result for result in results if isinstance(result, Claimed)]
    if len(claimed) == len(picks):
        return _settle(order, claimed, patience)
    if fewer := _permitted(order, results):
        left_out = list(zip(order.picks, order.instances, strict=False))[fewer:]
        order = replace(order, picks=picks[:fewer])
        return order, (*(events.ReleaseHost(*pair) for pair in left_out), Need.CLAIMS)
    released, order = _release_picks(order), replace(order, picks=())
    if any(isinstance(result, Held | Retired) for result in results):
        return _after(released, _placed_before(order, results, patience))
    avoided, refusals = set(order.tried.avoided), list(order.tried.refusals)
    by_fallback, by_rules = any(pick.parts for pick in picks), list(order.tried.by_rules)
    for pick, result in zip(picks, results, strict=False):
        if isinstance(result, Contended):
            return order, (*released, *_contended(order, patience, "its claim is contended"))
        if isinstance(result, Refused):
            for refusal in _of_rules(result):
                if refusal.wakes_on:
                    verdict = replace(order.verdict, refusal=refusal, shortages=(), is_reserved=False)
                    return replace(order, verdict=verdict), (*released, Need.FALLBACKS)
                if refusal.final and by_fallback:  # only what the fallback chose cannot succeed
                    by_rules.append(refusal)
                elif refusal.final:
                    order = failed(order, refusal.why, Decision(code=refusal.code))
                    return _after(released, _proceed(order, patience))
            texts, providers = refusals_of(pick, result.refusals)
            refusals += [text for text in texts if text not in refusals]
            avoided |= providers
    tried = replace(
        order.tried,
        avoided=frozenset(avoided),
        refusals=tuple(refusals),
        refused_rounds=order.tried.refused_rounds + 1,
        by_rules=tuple(by_rules),
    )
    obstacle = f"every host that would do was refused when it was claimed: {'; '.join(tried.latest_refusals)}"
    verdict = replace(order.verdict, obstacle=obstacle, shortages=(), is_reserved=False)
    return _after(released, _proceed(replace(order, attempt=0, tried=tried, verdict=verdict), patience))


def _of_rules(result: Refused) -> list[RuleRefused]:
    return [refusal for refusal in result.refusals if isinstance(refusal, RuleRefused)]


def _permitted(order: Order, results: Sequence[ClaimResult]) -> int:
    """Return how many of the chosen instances could be claimed without the others, if fewer instances are
    enough (`at_least`), and the others were refused only by rules that may permit them later; else 0.
    """
    if not order.request.at_least or order.picks[0].scope.jointly is not None:
        return 0
    refused = [result for result in results if isinstance(result, Refused)]
    refusals = [refusal for result in refused for refusal in result.refusals]
    passing = [refusal for refusal in refusals if isinstance(refusal, RuleRefused) and refusal.wakes_on]
    if not passing or len(passing) < len(refusals) or len(refused) < len(results):
        return 0
    most = sum(1 for _ in takewhile(lambda result: not result.refusals, refused))
    return most if order.needed <= most < len(order.picks) else 0


def _release_picks(order: Order) -> events.Effects:
    return tuple([events.ReleaseHost(*pair) for pair in zip(order.picks, order.instances, strict=False)])


def _after(before: events.Effects, step_: Step) -> Step:
    """Return a step whose effects follow the effects `before`."""
    order, effects = step_
    return order, (*before, *effects)


def _placed_before(order: Order, results: Sequence[ClaimResult], patience: float) -> Step:
    """Continue an order without the instances that hold allocations already or have ended, according to
    placement's answers to their claims (`results`).
    """
    answered = list(zip(order.instances, results, strict=False))
    left = [instance for instance, result in answered if not isinstance(result, Held | Retired)]
    order = replace(
        order,
        attempt=0,
        instances=(*left, *order.instances[len(results) :]),
        verdict=replace(
            order.verdict,
            obstacle="its other instances were placed or ended before",
            shortages=(),
            is_reserved=False,
        ),
    )
    for instance, result in answered:
        if isinstance(result, Held | Retired):
            answer = order.purpose.claim_answered(order, instance, result, patience)
            if isinstance(answer, events.ComeAgain):
                return order, (answer,)
            order = answer
    return _proceed(order, patience)


def _settle(order: Order, claimed: Sequence[Claimed], patience: float) -> Step:
    """Settle the claimed instances, with alternates that are still usable, and go on to the next step."""
    picks, request = order.picks, order.request
    ways = [pick.choices[result.choice] for pick, result in zip(picks, claimed, strict=True)]
    avoided, refusals = set(order.tried.avoided), list(order.tried.refusals)
    settled = [*order.settled]
    effects: list[events.Effect] = []
    asked = further_constraints(request)
    for instance, pick, way, result in zip(order.instances, picks, ways, claimed, strict=False):
        if result.refused:
            texts, providers = refusals_of(pick, result.refused)
            refusals += texts
            avoided |= providers
        alternates, lacking = pick.alternates, 0
        if result.choice or avoided or len(picks) > 1:
            excluding = order.settled_roots.union([candidate.root for candidate in ways])
            if pick.scope.jointly is not None:  # alternates may be hosts of its other instances
                excluding = frozenset({way.root})
            alternates = usable_alternates(pick, way, excluding, avoided, order.alternates)
            if result.choice or len(alternates) < len(pick.alternates):
                lacking = order.alternates - len(alternates)
        alternative = order.alternative_for(instance)
        if pick.parts or pick.scope.optional:
            lacking = order.alternates
        settled.append(
            Settled(
                instance=instance,
                cell=way.cell,
                chosen=selection_of(way),
                generation=result.generation,
                decision=pick.decision(way.root, tuple(refusals[-16:]), asked),
                alternative=alternative,
                alternates=alternates,
                lacking=lacking,
                parts=pick.parts,
            )
        )
        effects.append(events.ReserveHost(pick, way, result.number, instance))
    shortages = order.verdict.shortages
    order = replace(order, instances=order.instances[len(picks) :], picks=(), settled=tuple(settled))
    if avoided or refusals:
        tried = replace(order.tried, avoided=frozenset(avoided), refusals=tuple(refusals))
        order = replace(order, tried=tried)
    if order.instances and shortages:  # instances without a host try the next flavor
        *earlier, last = shortages
        order = replace(order, verdict=replace(order.verdict, shortages=tuple(earlier)))
        return _after(tuple(effects), _no_host(order, last, patience))
    return _after(tuple(effects), _proceed(order, patience))


def _located(order: Order, event: events.Located, patience: float) -> Step:
    """Publish again the results of instances that already hold a host, with newly chosen alternates."""
    effects: list[events.Effect] = []
    held_earlier, order = order.held_before(), replace(order, found=order.released_elsewhere())
    for instance, held in held_earlier:
        match order.purpose.located(order, instance, held, event.providers):
            case Settled(chosen=chosen, alternative=alternative) as settled:
                if alternative is not None:
                    holds = chosen.choice.allocations
                    mappings = event.mappings(alternative.question, chosen.root, holds)
                    chosen = replace(chosen, mappings=mappings)
                settled = replace(settled, chosen=chosen, parts=event.parts.get(instance, ()))
                order = replace(order, settled=(*order.settled, settled))
            case EndedInstance(reason=why):
                effects.append(events.Warn(f"build {instance}: {why}"))
                order = with_ended(order, instance, why)
            case events.ComeAgain() as retry:
                return order, (retry,)
    return _after(tuple(effects), _proceed(order, patience))


def _fenced(order: Order, results: Sequence[tuple[Id, ReleaseResult]], patience: float) -> Step:
    """Handle the results of retiring instances that get no host."""
    released = {instance for instance, _ in order.released_elsewhere()}
    left = tuple([instance for instance in order.instances if instance not in dict(results)])
    order = replace(order, found=(), instances=left)
    effects: list[events.Effect] = []
    for instance, result in results:
        match result:
            case Released() if instance in released:
                effects.append(events.Warn(f"build {instance}: {why_released(instance)}"))
                order = with_ended(order, instance, why_released(instance))
            case Released():
                order = with_ended(order, instance, order.verdict.reason)
            case Retired():
                order = order.purpose.retire_answered(order, instance, result)
            case Held() if instance not in released:
                order = order.purpose.retire_answered(order, instance, result)
            case _:
                contended = _contended(order, patience, f"the claim of {instance} is contended")
                return order, (*effects, *contended)
    return _after(tuple(effects), _proceed(order, patience))
