"""Sends the claims and releases of builds to placement, and returns its answers as events of the builds."""

import logging
from collections.abc import Sequence

from bus.claims import ClaimAnswered, ClaimRequested, ClaimResult, ReleaseAnswered, ReleaseRequested
from bus.errors import AnswerRefused, Unavailable
from bus.protocol import AskMany, ask_each
from cell_conductor.core.build import Build
from cell_conductor.core.events import CleanedUp, Event, ReleaseAnswer, SwapAnswered

log = logging.getLogger(__name__)


class BuildClaims:
    """Asks placement for many builds at once. If placement is unreachable, no build gets an event."""

    def __init__(
        self,
        claim_many: AskMany[ClaimRequested, ClaimAnswered],
        release_many: AskMany[ReleaseRequested, ReleaseAnswered],
    ) -> None:
        self.claim_many = claim_many
        self.release_many = release_many

    async def swap(self, swaps: Sequence[tuple[Build, ClaimRequested]]) -> dict[str, Event]:
        """Send the claims that swap hosts; return placement's answers as events. If placement is unreachable,
        return none.
        """
        try:
            answers = await self.claim_each([question for _, question in swaps])
        except Unavailable as away:
            log.warning("%d builds wait to swap hosts: %s", len(swaps), away)
            return {}
        return {
            build.id: SwapAnswered(build.attempt, answer, build.parts)
            for (build, _), answer in zip(swaps, answers, strict=True)
        }

    async def claim_each(self, questions: Sequence[ClaimRequested]) -> list[ClaimResult | str]:
        """Send claims to placement; return for each its result, or a text why placement refused to answer."""
        answers = await ask_each(self.claim_many, questions) if questions else ()
        return [str(one) if isinstance(one, AnswerRefused) else one.results[0] for one in answers]

    async def release(self, releases: Sequence[tuple[Build, ReleaseRequested]]) -> dict[str, Event]:
        """Send the releases of builds; return placement's answers as events. If placement is unreachable,
        return none.
        """
        if not releases:
            return {}
        try:
            answers = await self.release_many([question for _, question in releases])
        except Unavailable as away:
            log.warning("%d builds wait for the release of their allocations: %s", len(releases), away)
            return {}
        return {
            build.id: ReleaseAnswer(build.status, answer.result)
            if question.consumer == build.id
            else CleanedUp(question.consumer, answer.result)
            for (build, question), answer in zip(releases, answers, strict=True)
        }
