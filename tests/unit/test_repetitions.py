"""The comparison of a repeated request with the first one: fields, digests, and the cell's answer."""

import pytest
from msgspec.structs import replace

from berth.rest.ends import results_of
from bus.messages import BuildConflict, BuildEndRequested
from bus.protocol import encode
from bus.repetitions import conflict, differing, is_other, scheme_of
from cell_conductor.core.build import Build
from cell_conductor.core.events import AttemptLimits
from tests.support.conductor_builders import a_placed, in_short, kernel_step
from tests.support.scheduler_builders import SMALL, FakePlacement, a_candidate, a_request
from tests.support.schedulers import scheduler_of

LIMITS = AttemptLimits()
FIRST = replace(a_placed(), content="aaaaaaaa1111")
BIG = replace(SMALL, name="big")


@pytest.mark.parametrize(
    ("first", "second", "other"),
    [
        ("aaaaaaaa1111", "aaaaaaaa1111", False),
        ("aaaaaaaa1111", "aaaaaaaa2222", True),
        ("aaaaaaaa1111", "bbbbbbbb2222", False),  # made by a release or features with other fields
        ("", "aaaaaaaa2222", False),
        ("aaaaaaaa1111", "", False),
    ],
)
def test_digests_of_the_same_scheme_are_compared(first: str, second: str, other: bool) -> None:
    assert is_other(first, second) is other
    placed = replace(FIRST, content=first)
    build, _ = kernel_step(None, placed, 0.0, LIMITS)
    assert build is not None
    again, effects = kernel_step(build, replace(placed, content=second), 1.0, LIMITS)
    assert again is build
    assert [in_short(each) for each in effects] == (["BuildConflict"] if other else ["build 1 at host0"])


def test_a_conflict_is_for_the_sender_of_the_repeated_request() -> None:
    build: Build | None = kernel_step(None, replace(FIRST, reply_to="me"), 0.0, LIMITS)[0]
    asked = BuildEndRequested(
        build=FIRST.build, cell="c1", request=FIRST.request, content="aaaaaaaa2222", reply_to="you"
    )
    _, (refused,) = kernel_step(build, asked, 1.0, LIMITS)
    assert isinstance(refused, BuildConflict) and refused.reply_to == "you"
    assert "aaaaaaaa1111" in refused.reason and "aaaaaaaa2222" in refused.reason


def test_the_delivery_of_a_request_is_no_content() -> None:
    first = a_request(flavor=SMALL, instances=3, at_least=2)
    second = a_request(flavor=SMALL, instances=2, reply_to="me", strict=True, unknown_fields=("x",))
    assert differing(first, second) == ()
    assert differing(first, replace(second, flavor=BIG, name="web")) == ("flavor", "name")


def test_two_schedulers_make_the_same_digest_of_a_request() -> None:
    request = a_request(metadata={"a": "1", "b": "2"}, at_least=1)
    shuffled = replace(request, metadata={"b": "2", "a": "1"})
    one, two = (scheduler_of(FakePlacement(a_candidate(1))).orders for _ in range(2))
    assert one.begin(request, 0.0).content == two.begin(shuffled, 0.0).content
    assert len({one.begin(each, 0.0).content for each in (request, replace(request, name="web"))}) == 2


def test_the_scheme_is_the_same_in_each_process_and_differs_by_what_a_policy_reads() -> None:
    assert scheme_of() == scheme_of() != scheme_of("metadata")


def test_the_builds_of_a_conflict_are_refused_over_http() -> None:
    refused = conflict(FIRST.request, (FIRST.build,), ("flavor",), "_rest", cell="c1")
    [result] = results_of("build.conflict", encode(refused).decode())
    assert (result.build, result.status, result.code) == (FIRST.build, "refused", "conflict")
    assert result.reason.endswith("flavor differs")
