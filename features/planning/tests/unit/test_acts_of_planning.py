"""The acts on rebalancing."""

from bus.acts import BY_NAME, act_of
from features.planning.messages import SwitchBalancing


def test_a_question_about_rebalancing_is_no_act() -> None:
    assert act_of(SwitchBalancing()) is None
    assert act_of(SwitchBalancing(controller="a", renew=True)) is None
    for asked in (SwitchBalancing(stop=True), SwitchBalancing(controller="a")):
        assert act_of(asked) == BY_NAME["rebalance"]
