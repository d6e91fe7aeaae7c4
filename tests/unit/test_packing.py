"""The model of packing: what is claimed, released and undone on trial, compared with amounts added anew."""

from random import Random

import numpy as np

from bus.packing import ProviderPacking, RowPacking, instances_in
from bus.vocabulary import Allocations

CLASSES = ("VCPU", "MEMORY_MB", "DISK_GB")


def some_allocations(chance: Random) -> Allocations:
    providers = chance.sample("abcd", chance.randint(1, 3))
    return {provider: {chance.choice(CLASSES): chance.randint(1, 9)} for provider in providers}


def test_taken_amounts_are_the_sum_of_claims_less_releases() -> None:
    chance = Random(1)
    for _ in range(200):
        packing, expected = (
            ProviderPacking({"a": {"VCPU": 20, "MEMORY_MB": 20}}),
            dict[tuple[str, str], int](),
        )
        for _ in range(chance.randint(1, 12)):
            allocations, sign = some_allocations(chance), chance.choice((1, 1, -1))
            (packing.claim if sign > 0 else packing.release)(allocations)
            for provider, amounts in allocations.items():
                for name, amount in amounts.items():
                    expected[provider, name] = expected.get((provider, name), 0) + sign * amount
        taken = {(provider, name): n for provider, some in packing.taken.items() for name, n in some.items()}
        assert taken == {at: amount for at, amount in expected.items() if amount}
        assert packing.negative == {at for at, amount in expected.items() if amount < 0}
        assert packing.free("a") == {name: 20 - expected.get(("a", name), 0) for name in CLASSES[:2]}
        assert packing.free("unknown") == {}


def test_a_trial_undoes_its_own_changes_only() -> None:
    packing, mine, others = ProviderPacking(), {"a": {"VCPU": 2}}, {"a": {"VCPU": 1}, "b": {"VCPU": 4}}
    packing.claim(mine)
    with packing.trying() as trial:
        trial.release(mine)
        before = trial.mark()
        trial.claim({"a": {"VCPU": 5}})
        packing.claim(others)  # such as a choice that stays
        assert packing.taken["a"] == {"VCPU": 6}
        trial.undo(before)
        assert packing.taken == others
    assert packing.taken == {"a": {"VCPU": 3}, "b": {"VCPU": 4}}
    with packing.releasing(others, {}):
        assert packing.taken == {"a": {"VCPU": 2}}
    assert packing.taken == {"a": {"VCPU": 3}, "b": {"VCPU": 4}}


def test_a_trial_is_undone_after_an_exception() -> None:
    packing = ProviderPacking()
    try:
        with packing.trying() as trial:
            trial.claim({"a": {"VCPU": 1}})
            raise LookupError
    except LookupError:
        assert packing.taken == {}


def test_rows_fit_what_is_free_of_each_requested_class() -> None:
    chance = Random(2)
    for _ in range(200):
        free = [[chance.randint(-2, 9) for _ in CLASSES] for _ in range(6)]
        packing = RowPacking(CLASSES, np.array(free, np.float64), np.full((6, 3), 8.0))
        amounts = packing.vector({name: chance.randint(0, 4) for name in CLASSES})
        with packing.trying() as trial:
            for _ in range(chance.randint(0, 4)):
                row, more = chance.randrange(6), [chance.randint(0, 3) for _ in CLASSES]
                (trial.claim if chance.random() < 0.6 else trial.release)(row, np.array(more, np.float64))
            asked = [at for at, amount in enumerate(amounts) if amount]
            lacks = [
                [max(amounts[at] - row[at], 0.0) if at in asked else 0.0 for at in range(3)]
                for row in packing.free
            ]
            assert packing.fits(amounts).tolist() == [not any(row) for row in lacks]
            assert packing.lacks(amounts).tolist() == lacks
            assert packing.distances(amounts).tolist() == [sum(row) / 8 for row in lacks]
            for row, count in zip(packing.free, instances_in(amounts, packing.free).tolist(), strict=True):
                if not asked:
                    assert count == np.inf
                    continue
                assert (row >= count * amounts)[asked].all() or count == 0
                assert not (row >= (count + 1) * amounts)[asked].all()
        assert packing.free.tolist() == free
    assert packing.copy().free is not packing.free
