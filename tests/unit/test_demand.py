"""The usual shapes of requests: decayed counts of what instances ask for."""

import pytest

from bus.queries import FindCandidates
from bus.requests import ResourceGroup
from scheduler_worker.core.demand import (
    HALF_LIFE,
    MOST_SHAPES,
    MOST_USUAL,
    DemandCounts,
    Shape,
    ShapeGroup,
    encoded,
    shape_of,
    weight_at,
)

NOW = 1_800_000_000.0


def flat(cpus: int) -> Shape:
    return Shape(groups=(ShapeGroup(resources=(("VCPU", cpus),), is_split=True),))


def parts(demand: DemandCounts) -> dict[Shape, float]:
    usual = demand.usual()
    return dict(zip(usual.shapes, usual.parts, strict=True))


def test_a_shape_has_the_amounts_and_traits_of_a_query_without_its_names() -> None:
    query = FindCandidates(
        groups=(
            ResourceGroup(resources={"VCPU": 2, "DISK_GB": 0}),
            ResourceGroup(suffix="_a", resources={"GPU": 1}, required=("X",)),
            ResourceGroup(suffix="_b", resources={"GPU": 1}, required=("X",)),
        ),
        group_policy="isolate",
        cell="c1",
    )
    gpus = ShapeGroup(resources=(("GPU", 1),), count=2, required=("X",))
    assert {*shape_of(query).groups} == {*flat(2).groups, gpus}
    assert shape_of(query).apart
    assert shape_of(query).amounts == {"VCPU": 2, "GPU": 2}


def test_the_parts_of_shapes_are_those_of_the_instances() -> None:
    demand = DemandCounts()
    demand.count([(flat(1), 3), (flat(2), 1)], NOW)
    assert parts(demand) == {flat(1): 0.75, flat(2): 0.25}


def test_a_request_counts_half_after_the_half_life() -> None:
    demand = DemandCounts()
    demand.count([(flat(1), 1)], NOW)
    demand.count([(flat(2), 1)], NOW + HALF_LIFE)
    assert parts(demand)[flat(1)] == pytest.approx(1 / 3)


def test_weighers_see_the_same_demand_until_a_tenth_of_it_has_changed() -> None:
    demand = DemandCounts()
    demand.count([(flat(1), 100)], NOW)
    before = demand.usual()
    demand.count([(flat(2), 5)], NOW)
    assert demand.usual() is before
    demand.count([(flat(2), 10)], NOW)
    assert demand.usual().version > before.version
    assert parts(demand)[flat(2)] == pytest.approx(15 / 115)


def test_the_memory_is_bounded_and_weighers_see_the_most_frequent_shapes() -> None:
    demand = DemandCounts()
    for cpus in range(1, 3 * MOST_SHAPES):
        demand.count([(flat(cpus), 2)], NOW)
    for _ in range(5):  # a new shape has time to become frequent
        demand.count([(flat(9999), 1)], NOW)
    assert len(demand.taken()) <= 2 * MOST_SHAPES
    usual = demand.usual()
    assert len(usual.shapes) == MOST_USUAL
    assert usual.shapes[0] == flat(9999)
    assert sum(usual.parts) == pytest.approx(1.0)


def test_shapes_with_very_many_groups_traits_or_classes_are_not_counted() -> None:
    demand = DemandCounts()
    wide = ShapeGroup(resources=tuple((f"C{n}", 1) for n in range(17)))
    selective = ShapeGroup(resources=(("VCPU", 1),), forbidden=tuple(f"CUSTOM_{n}" for n in range(9)))
    several = tuple(ShapeGroup(resources=(("VCPU", n),)) for n in range(1, 10))
    for groups in ((wide,), (selective,), several):
        demand.count([(Shape(groups=groups), 1)], NOW)
    assert demand.taken() == {}


def test_the_counts_of_other_schedulers_are_added_to_those_not_yet_stored() -> None:
    demand = DemandCounts()
    demand.count([(flat(1), 1)], NOW)
    stored = demand.taken()
    demand.count([(flat(2), 2)], NOW)
    demand.replace({**stored, encoded(flat(3)): weight_at(NOW)})
    assert parts(demand) == {flat(1): 0.25, flat(2): 0.5, flat(3): 0.25}


def test_counts_that_could_not_be_stored_are_stored_later() -> None:
    demand = DemandCounts()
    demand.count([(flat(1), 1)], NOW)
    demand.put_back(demand.taken())
    assert demand.taken() == {encoded(flat(1)): weight_at(NOW)}
