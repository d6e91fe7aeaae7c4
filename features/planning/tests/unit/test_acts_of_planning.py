"""The acts on rebalancing."""

from bus.acts import BY_NAME, act_of
from features.planning.messages import SwitchBalancing


def test_a_question_about_rebalancing_is_no_act() -> None:
    assert act_of(SwitchBalancing()) is None
    assert act_of(SwitchBalancing(stop=True)) == BY_NAME["rebalance"]
