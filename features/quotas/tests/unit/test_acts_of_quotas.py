"""The acts on quotas."""

import pytest

from bus.acts import BY_NAME, Target, act_of, describe
from features.quotas.messages import QuotaEditRequested, SetQuota


@pytest.mark.parametrize(("project", "target"), [("p1", Target("p1", project="p1")), ("", Target("default"))])
def test_an_edit_of_a_quota_names_its_project(project: str, target: Target) -> None:
    asked = QuotaEditRequested(edit=SetQuota(project=project, limits={"VCPU": 1}))
    assert (act_of(asked), describe(asked)) == (BY_NAME["quota"], target)
