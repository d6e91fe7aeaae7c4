"""The act of a quota in the table of acts."""

import pytest

from bus.acts import Target, act_of, describe
from bus.vocabulary import Message
from features.quotas.messages import QuotaEditRequested, SetQuota

EXPECTED = {
    "a quota": (
        QuotaEditRequested(edit=SetQuota(project="p1", limits={"VCPU": 1})),
        "quota",
        Target("p1", project="p1"),
    ),
    "the default quota": (QuotaEditRequested(edit=SetQuota(limits={"VCPU": 1})), "quota", Target("default")),
}


@pytest.mark.parametrize(("message", "act", "target"), EXPECTED.values(), ids=EXPECTED.keys())
def test_a_message_names_its_act_and_target(message: Message, act: str, target: Target) -> None:
    found = act_of(message)
    assert (found and found.name, describe(message)) == (act, target)
