"""Cancels requests that wait for capacity."""

from berth.kit.publishing import PUBLISH_SECONDS, checked, publish, within_seconds
from bus import topics
from bus.clock import Clock
from bus.delivery.runner import Bus
from bus.messages import BuildCancelled, BuildCancelRequested

_CANCEL_SECONDS = 30.0  # time limit for a scheduler to confirm a cancellation


async def end_wait(bus: Bus, request: str) -> BuildCancelled:
    """Cancel a request that waits for capacity; return the scheduler's reply. A request that has got its host
    in the meantime continues.
    """
    answers = await bus.listen(topics.BUILD_CANCELLED.at(reply_to=(name := f"cancel-{Clock().uuid()[:8]}")))
    otherwise = (
        f"no scheduler answered within {_CANCEL_SECONDS:g} s that {request} does not wait any more;"
        " a scheduler that returns will still end it"
    )
    try:
        await publish(
            bus, checked(BuildCancelRequested(build=request, reply_to=name)), patience=PUBLISH_SECONDS
        )
        return await within_seconds(_CANCEL_SECONDS, answers.get(), otherwise)
    finally:
        await answers.stop()
