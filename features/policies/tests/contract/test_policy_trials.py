"""Trials of a policy on a scheduler: which hosts requests would get with it, on the present hosts."""

from bus.messages import BuildRequested
from features.policies.messages import TRY_POLICY, PolicyTried, TrialPolicy, TryPolicy
from tests.support.scheduler_builders import a_request
from tests.support.virtual_time import in_virtual_time
from tests.support.waiting_world import WaitingWorld, waiting_world


async def tried(world: WaitingWorld, policy: TrialPolicy, *requests: BuildRequested) -> PolicyTried:
    return await world.bus.asker(TRY_POLICY)(TryPolicy(policy=policy, requests=requests))


@in_virtual_time
async def test_an_invalid_policy_is_refused_with_the_reason() -> None:
    async with waiting_world() as world:
        for policy, why in (
            (TrialPolicy(filters=("nonsense",)), "unknown filter 'nonsense'"),
            (TrialPolicy(options={"io_ops": "x"}), "no JSON object"),
            (TrialPolicy(options={"io_ops": '{"most": 1}'}), "no such option"),
            (TrialPolicy(supposes={"the moon": "{}"}), "changes of the moon are not tried here"),
        ):
            answer = await tried(world, policy, a_request(1))
            assert why in answer.refusal and not answer.results
