"""The host chosen by the filters and weighers of the feature equals the best host of a slow evaluation."""

from random import Random
from typing import Any

import pytest

from berth.kit.testing import add_filters
from tests.support.exact_choice import RULES, WEIGHERS, Batches, some_orders

add_filters()


def options(chance: Random) -> dict[str, Any]:
    required = chance.random() < 0.3
    return {"metrics": {"weight_setting": {"temperature": -1.0}, "required": required}}


BATCHES_OF_NOVA = Batches(
    (*RULES, "num_instances"), (*WEIGHERS, "num_instances", "hypervisor_version", "metrics"), options=options
)


@pytest.mark.parametrize("seeds", [range(1, 15)], ids=str)
def test_every_choice_is_the_best_after_the_earlier_ones(seeds: range) -> None:
    assert min(BATCHES_OF_NOVA.check(seeds, some_orders)) > 0
