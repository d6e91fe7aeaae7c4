"""Answers Nova's scheduler RPC: decodes each call, asks berth's scheduler, and returns Selections."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from uuid import UUID

from msgspec.structs import replace

from bus.claims import ReleaseAnswered, ReleaseRequested
from bus.clock import Clock
from bus.errors import AnswerRefused, NoAnswer, Unavailable
from bus.messages import BuildPlaced, BuildUnplaceable
from bus.protocol import Ask
from features.nova.core.cloud import DISCOVER
from features.nova.core.request_spec import MalformedSpec, RequestSpec, decoded
from features.nova.core.scheduler_notifications import Phase
from features.nova.core.selections import present_host, selections
from features.nova.core.translation import (
    BridgeOptions,
    CannotJudge,
    GroupOfRequest,
    NoSuchDestination,
    Translated,
    translated,
)
from features.nova.messages import HostsAnswered, HostsAsked
from features.nova.mirror import Mirror
from features.nova.oslo.server import RpcCall, RpcFailure, RpcResult

log = logging.getLogger(__name__)

NO_VALID_HOST = "nova.exception.NoValidHost"
UNSUPPORTED = "oslo_messaging.rpc.dispatcher.UnsupportedVersion"
TEMPORARY_FOR = 30.0  # seconds for which a query is repeated if no host fits for a temporary reason
LONGEST_PAUSE = 5.0  # between two evaluations of a call that waits for capacity
# Casts in which nova-compute reports its instances; ignored, because placement has the usage of hosts.
IGNORED = ("update_instance_info", "delete_instance_info", "sync_instance_info")
JoinGroup = Callable[[HostsAsked, GroupOfRequest], Awaitable[HostsAsked]]
NO_GROUPS = "its server group: this berth has no server groups (features/groups)"
_WAITS_FOR = frozenset({"class", "room", "refused", "down", "unknown", "reserved", "chosen", "io_ops"})


@dataclass(frozen=True, kw_only=True)
class SchedulingQueries:
    """The queries that the bridge sends to answer Nova's calls: to berth's scheduler and placement, and to
    Nova.
    """

    select: Ask[HostsAsked, HostsAnswered]
    release: Ask[ReleaseRequested, ReleaseAnswered]
    # adds a server group of Nova to a query; None: no feature knows server groups
    join_group: JoinGroup | None = None
    # forwards a call that berth cannot judge to a nova-scheduler; None: there is none
    fallback: Callable[[RpcCall], Awaitable[object]] | None = None
    # whether Nova still waits for hosts of the given instances; None: unknown, so each call is answered
    still_waits: Callable[[Sequence[str]], Awaitable[bool]] | None = None


class NovaScheduling:
    """Implements the RPC methods of Nova's scheduler."""

    def __init__(
        self,
        queries: SchedulingQueries,
        mirror: Mirror,
        options: BridgeOptions,
        clock: Clock,
        *,
        wait: float = 0.0,
        notify: Callable[[RpcCall, Phase], None] | None = None,
    ) -> None:
        self._queries = queries
        self._mirror = mirror
        self._options = options
        self._clock = clock
        self._wait = wait  # seconds that a call may wait for capacity
        # queues the notifications that Nova's scheduler publishes when a call starts or ends
        self._notify = notify or (lambda call, phase: None)

    async def answer(self, call: RpcCall) -> RpcResult:
        """Answer a call of nova-conductor, as nova-scheduler does."""
        if call.namespace == "baseapi":
            pong = {"service": "scheduler", "arg": call.args.get("arg")}
            return RpcResult(pong if call.method == "ping" else None)
        is_select = call.method == "select_destinations"
        oldest = 5 if is_select else 0
        major, _, minor = call.version.partition(".")
        if major != "4" or not minor.isdecimal() or not oldest <= int(minor) <= 5:
            answered = "4.5" if is_select else "4.0 to 4.5"
            raise RpcFailure(
                UNSUPPORTED,
                f"{call.method} in version {call.version} of the scheduler's RPC: berth answers {answered}",
            )
        if is_select:
            return await self._select(call)
        if call.method in ("update_aggregates", "delete_aggregate"):
            await self._mirror.refresh()
        elif call.method not in IGNORED:
            raise RpcFailure("oslo_messaging.rpc.dispatcher.NoSuchMethod", f"no method {call.method}")
        return RpcResult()

    async def _select(self, call: RpcCall) -> RpcResult:
        try:
            spec = _spec_of(call)
            instances = _instances(call)
        except MalformedSpec as problem:
            raise RpcFailure("builtins.ValueError", str(problem)) from None
        still_waits = self._queries.still_waits
        if call.redelivered and still_waits is not None and not await still_waits(instances):
            raise _no_valid_host("nova does not wait for this call any more")
        try:
            question = await self._question(call, spec, instances)
        except NoSuchDestination as problem:
            raise _no_valid_host(str(problem)) from None
        except CannotJudge as why:
            if self._queries.fallback is None:
                raise _no_valid_host(f"berth cannot decide about {why}") from None
            log.info("forwarded to nova-scheduler: %s: %s", ", ".join(instances), why)
            return RpcResult(await self._queries.fallback(call))
        self._notify(call, "start")
        answer = await self._placed(question)
        if answer.refused is not None:
            raise _no_valid_host(answer.refused.reason)
        strange = [build for build in answer.placed if build.chosen.root not in self._mirror.cloud.hosts]
        if strange:
            await self._undo(answer.placed)
            chosen = strange[0].chosen
            is_unmapped = chosen.root in self._mirror.cloud.unmapped
            reason = f": {DISCOVER}" if is_unmapped else " is no compute node of Nova"
            raise _no_valid_host(f"{chosen.host}{reason}")
        value = self._result(question, answer.placed)
        self._notify(call, "end")
        moves = bool(spec.ignore_hosts)  # for a move, Nova's conductor releases the claims itself
        return RpcResult(value, None if moves else partial(self._undo, answer.placed))

    async def _undo(self, placed: Sequence[BuildPlaced]) -> None:
        """Release the claims of an RPC call whose answer Nova does not use, except claims that were changed
        after the call.
        """
        for build in placed:
            log.warning("nova gave up on %s: its claim is released", build.build)
            await self._queries.release(ReleaseRequested(consumer=build.build, generation=build.generation))

    async def _question(self, call: RpcCall, spec: RequestSpec, instances: Sequence[str]) -> HostsAsked:
        """Translate an RPC call to a query to berth's scheduler, with the server group that it names; if the
        call names an unknown host, read Nova's databases and retry.
        """

        def translate() -> Translated:
            return translated(
                spec,
                instances,
                self._mirror.cloud,
                self._options,
                request=_request_id(call, self._clock),
                wants_alternates=bool(call.args.get("return_alternates")),
            )

        try:
            found = translate()
        except NoSuchDestination:
            await self._mirror.refresh()
            found = translate()
        if found.group is None:
            return found.question
        if self._queries.join_group is None:
            raise CannotJudge(NO_GROUPS)
        return await self._queries.join_group(found.question, found.group)

    async def _placed(self, question: HostsAsked) -> HostsAnswered:
        """Return the answer of berth's scheduler; repeat the query if the scheduler asks for a retry or does
        not answer. If no host fits, repeat the query until the operator's setting `wait` has passed."""
        began, pause = self._clock.monotonic(), 0.25
        while True:
            waited = self._clock.monotonic() - began
            try:
                answer = await self._queries.select(_waited(question, waited))
            except (NoAnswer, Unavailable) as problem:
                if waited > max(self._wait, TEMPORARY_FOR):
                    raise RpcFailure(
                        NO_VALID_HOST, "", reason=f"no scheduler of berth answers: {problem}"
                    ) from None
                await asyncio.sleep(pause)
                continue
            except AnswerRefused as problem:
                raise _no_valid_host(str(problem)) from None
            if answer.again:
                await asyncio.sleep(answer.again)
            elif answer.refused is not None and waited < self._wait and _may_fit_later(answer.refused):
                pause = min(pause * 2, LONGEST_PAUSE)
                await asyncio.sleep(pause)
            else:
                return answer

    def _result(self, question: HostsAsked, placed: Sequence[BuildPlaced]) -> object:
        cloud, zone = self._mirror.cloud, self._options.default_zone
        if question.do == "check":
            return [
                [present_host(question.request.forced_host, cloud, zone)] for _ in question.request.instances
            ]
        return selections(placed, [group.suffix for group in question.request.groups], cloud, zone)


def _no_valid_host(reason: str) -> RpcFailure:
    return RpcFailure(NO_VALID_HOST, f"No valid host was found. {reason}", reason=reason)


def _spec_of(call: RpcCall) -> RequestSpec:
    """Return the RequestSpec of an RPC call; if it names no user, with the user who made the call."""
    spec = decoded(call.args.get("spec_obj"))
    return spec if spec.user_id else replace(spec, user_id=str(call.context.get("user_id") or ""))


def _instances(call: RpcCall) -> tuple[str, ...]:
    """Return the ids of the instances for which an RPC call requests hosts."""
    named = call.args.get("instance_uuids")
    if not named:
        raise MalformedSpec("the call names no instance")
    return tuple(str(instance).lower() for instance in named)


def _request_id(call: RpcCall, clock: Clock) -> str:
    """Return the RPC call's message id as a UUID, so that a redelivered call counts as the same request; a
    new UUID if the message id has another form.
    """
    try:
        return str(UUID(call.message_id))
    except ValueError:
        return clock.uuid()


def _waited(question: HostsAsked, waited: float) -> HostsAsked:
    return HostsAsked(request=question.request, waited=waited, do=question.do)


def _may_fit_later(refused: BuildUnplaceable) -> bool:
    return refused.decision.code in _WAITS_FOR
