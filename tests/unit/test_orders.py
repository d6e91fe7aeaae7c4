"""Queries of equal requests are computed once."""

import pytest

from bus.cells import RegisteredCell
from bus.messages import BuildRequested
from bus.requests import Flavor, Hints
from scheduler_worker import ChoicePolicy
from scheduler_worker import orders as remembering
from scheduler_worker.core.extra_specs import RequestOptions
from scheduler_worker.orders import Orders
from tests.support.ids import uid
from tests.support.plain_source import PlainSource
from tests.support.scheduler_builders import a_candidate, a_request

GUEST = uid(2000, "b")  # the first instance of the second request


def orders() -> Orders:
    return Orders(PlainSource([a_candidate(1)], {}), RequestOptions(), ChoicePolicy())


@pytest.mark.parametrize(
    ("one", "other", "alike"),
    [
        ({}, {}, True),
        ({}, {"metadata": {"a": "b"}, "user": "you", "reply_to": "me"}, True),
        ({}, {"flavor": Flavor(name="large", vcpus=8)}, False),
        ({}, {"project": "p2"}, False),
        ({}, {"priority": 3}, False),
    ],
)
def test_requests_with_equal_alternatives(
    one: dict[str, object], other: dict[str, object], alike: bool
) -> None:
    made = orders()
    first, _ = made.begin(a_request(1, **one), 0.0)  # type: ignore[arg-type]
    second, _ = made.begin(a_request(2, **other), 0.0)  # type: ignore[arg-type]
    assert (first.alternatives is second.alternatives) == alike


@pytest.mark.parametrize(
    ("well", "wrong", "says"),
    [
        (a_request(1, instances=5, at_least=3), a_request(2, instances=2, at_least=3), "at_least"),
        (
            a_request(1, hints=Hints(different_host=(GUEST,))),
            a_request(2, hints=Hints(different_host=(GUEST,))),
            "different_host",
        ),
    ],
)
def test_an_error_of_one_of_two_equal_requests_is_found(
    well: BuildRequested, wrong: BuildRequested, says: str
) -> None:
    made = orders()
    _, begun = made.begin(well, 0.0)
    assert not begun.refusal
    _, begun = made.begin(wrong, 0.0)
    assert says in begun.refusal


def test_alternatives_of_a_request_contain_nothing_of_its_owner() -> None:
    made = orders()
    order, _ = made.begin(a_request(1, reply_to="me"), 0.0)
    read = order.alternatives[0].request
    assert (read.request, read.instances, read.reply_to) == ("", (), "")
    assert order.request == a_request(1, reply_to="me")


def test_the_cache_of_requests_is_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remembering, "REMEMBERED_BYTES", 100_000)
    made = orders()

    def alternatives(number: int) -> object:
        large = Flavor(name="large", vcpus=1, extra_specs={f"note{n}": f"{number:01000}" for n in range(40)})
        return made.begin(a_request(1, flavor=large), 0.0)[0].alternatives

    first = alternatives(1)
    assert alternatives(1) is first
    for number in range(2, 5):
        alternatives(number)
    assert alternatives(1) is not first


def test_an_order_that_is_looked_at_again_goes_by_the_cells_as_they_are_now() -> None:
    source = PlainSource([a_candidate(1)], {})
    made = Orders(source, RequestOptions(), ChoicePolicy())
    order, _ = made.begin(a_request(1), 0.0)
    for enabled in (False, True):
        source.cells = {"c1": RegisteredCell(name="c1", enabled=enabled)}
        made._heard((), ("c1",))
        closed = () if enabled else ("c1",)
        order = made.again(order)
        assert order.alternative.question.not_cells == closed
        assert made.begin(a_request(2), 0.0)[0].alternative.question.not_cells == closed
