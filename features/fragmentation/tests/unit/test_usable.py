"""The part of a host's free amounts that the usual requests could still use."""

from collections.abc import Sequence
from random import Random

import numpy as np
import pytest

from features.fragmentation.core.usable import (
    STRANDED,
    UNKNOWN,
    USED_BY_RANDOM,
    LoneHosts,
    LoneParts,
    ShapeTable,
    UsableParts,
    copies_apart,
)
from scheduler_worker.core.extension import Shape, ShapeGroup

CPU, GPU, RAM = "CPU", "GPU", "RAM"
CLASSES = (CPU, GPU, RAM)


def flat(cpu: int, ram: int) -> Shape:
    return Shape(groups=(ShapeGroup(resources=((CPU, cpu), (RAM, ram)), is_split=True),))


def with_gpus(cpu: int, gpus: int, amount: int) -> Shape:
    of_root = ShapeGroup(resources=((CPU, cpu),), is_split=True)
    return Shape(groups=(of_root, ShapeGroup(resources=((GPU, amount),), count=gpus)), apart=gpus > 1)


def one_host(
    shapes: ShapeTable, root: tuple[int, int], *gpus: int, admitted: Sequence[bool] | None = None
) -> UsableParts:
    """Return a host with free processors and memory, of eight each, and with GPUs of ten units of which some
    are free.
    """
    free = np.array([[[root[0], 0, root[1]], *([0, gpu, 0] for gpu in gpus)]], np.float64)
    whole = np.array([[[8, 0, 8], *([0, 10, 0] for _ in gpus)]], np.float64)
    eligible = np.ones((len(shapes.groups), 1, 1 + len(gpus)), np.bool_)
    permits = None if admitted is None else np.array([admitted]).T
    return UsableParts.made(free, whole, shapes.scale, eligible, permits)


def table(*shapes: Shape, gpus: int = 0) -> ShapeTable:
    capacity = {CPU: 8.0, RAM: 8.0, GPU: 10.0 * gpus}
    return ShapeTable.of(shapes, [1 / len(shapes)] * len(shapes), 1, CLASSES, capacity)


@pytest.mark.parametrize(
    ("shape", "root", "gpus", "copies"),
    [
        (flat(2, 2), (8, 8), (), 4),
        (flat(2, 2), (8, 3), (), 1),
        (flat(2, 2), (1, 8), (), 0),
        (with_gpus(1, 1, 4), (8, 8), (10, 7), 3),
        (with_gpus(4, 1, 4), (8, 8), (10, 7), 2),
        (with_gpus(1, 2, 10), (8, 8), (10, 10, 9), 1),
        (with_gpus(1, 2, 5), (8, 8), (10, 0), 0),  # they need different GPUs
    ],
)
def test_copies_of_a_shape_fit_until_a_resource_runs_out(
    shape: Shape, root: tuple[int, int], gpus: Sequence[int], copies: int
) -> None:
    shapes = table(shape, gpus=len(gpus))
    host = one_host(shapes, root, *gpus)
    assert shapes.copies(host).tolist() == [[copies]]


@pytest.mark.parametrize("seed", range(3))
def test_copies_on_different_providers_are_those_of_taking_the_emptiest_again_and_again(seed: int) -> None:
    chance = Random(seed)
    for _ in range(100):
        units = [chance.randrange(5) for _ in range(chance.randrange(1, 6))]
        each = chance.randrange(2, 4)
        left = list(units)
        copies = 0
        while True:
            emptiest = sorted(range(len(left)), key=lambda n: -left[n])[:each]
            if len(emptiest) < each or left[emptiest[-1]] < 1:
                break
            copies += 1
            for n in emptiest:
                left[n] -= 1
        assert copies_apart(np.array([units], np.float64), each).tolist() == [copies]


def test_the_value_of_a_host_is_what_the_usual_shapes_could_use_of_it() -> None:
    shapes = table(flat(2, 2), flat(8, 2))
    host = one_host(shapes, (6, 8))
    # a shape's size is the mean of its shares: (2/8 + 2/8) / 2 for three copies; the other does not fit
    unknown = UNKNOWN / (1 - UNKNOWN) * USED_BY_RANDOM * (6 / 8) * (8 / 8)
    assert shapes.values(host) == pytest.approx([(3 * 0.25) / 2 + unknown])


def test_free_gpus_without_processors_cost_a_part_of_their_share() -> None:
    shapes = table(with_gpus(1, 1, 10), gpus=2)
    usable = 1 * (1 / 8 + 10 / 20) / 2
    assert shapes.values(one_host(shapes, (1, 8), 10, 10)) == pytest.approx([usable - STRANDED * (1 - 1 / 8)])


def test_a_shape_counts_only_on_hosts_whose_traits_it_accepts() -> None:
    of_root = ShapeGroup(resources=((CPU, 2), (RAM, 2)), is_split=True, required=("CUSTOM_FAST",))
    shapes = table(Shape(groups=(of_root,)))
    refused, accepted = (one_host(shapes, (8, 8), admitted=[permits]) for permits in (False, True))
    assert shapes.values(refused) < shapes.values(accepted)


def test_what_a_pool_supplies_does_not_limit_the_copies_on_a_host() -> None:
    shapes = ShapeTable.of([flat(2, 2)], [1.0], 1, CLASSES, {CPU: 8.0, RAM: 8.0})
    lacking = np.array([[[8, 0, 0]]], np.float64)
    pooled = np.array([[False, False, True]])
    eligible = np.ones((0, 1, 1), np.bool_)
    alone, served = (
        UsableParts.made(lacking, lacking, shapes.scale, eligible, None, shared) for shared in (None, pooled)
    )
    copies = [shapes.copies(host).tolist() for host in (alone, served)]
    assert copies == [[[0]], [[4]]]


@pytest.mark.parametrize("seed", range(5))
def test_a_host_of_one_provider_has_the_same_value_computed_alone(seed: int) -> None:
    chance = Random(seed)
    shapes = ShapeTable.of(
        [flat(chance.randrange(0, 5), chance.randrange(1, 5)) for _ in range(4)],
        [0.25] * 4,
        1,
        CLASSES,
        {CPU: 8.0, RAM: 8.0},
    )
    lone = LoneHosts(shapes)
    for _ in range(50):
        whole = np.array([[[chance.choice((0, 8, 16)), 0, chance.choice((8, 16))]]], np.float64)
        free = np.floor(whole * chance.random())
        shared = np.array([[whole[0, 0, 0] == 0 and chance.random() < 0.5, False, False]])
        host = UsableParts.made(free, whole, shapes.scale, np.ones((0, 1, 1), np.bool_), None, shared)
        pooled = np.flatnonzero(shared[0]).tolist()
        of_one = lone.value(free[0, 0].tolist(), host.per_whole[0, 0].tolist(), float(host.sizes[0]), pooled)
        assert of_one == pytest.approx(shapes.values(host)[0])
        parts = LoneParts.made(host)
        assert (parts is None) == bool(pooled)
        if parts is not None:
            in_array = lone.values(free[:, 0].T, parts.shares(free[:, 0].T), parts.sizes)
            assert in_array == pytest.approx(shapes.values(host))
