"""The model of packing: what is claimed and released, compared with amounts added anew."""

from random import Random

from bus.packing import ProviderPacking
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
