"""Microversions and Accept: what a client asks for and what it gets."""

import pytest

from placement_worker.http.api_call import negotiated
from placement_worker.http.errors import Problem, best, takes_json


@pytest.mark.parametrize(
    ("header", "minor"),
    [
        ("", 0),
        ("placement 1.0", 0),
        ("placement 1.39", 39),
        ("placement latest", 39),
        ("Placement latest", 39),
        ("compute 2.1", 0),
        ("compute 2.1, placement 1.7", 7),
        ("placement 1.3,placement 1.5", 5),
        ("placement  1.5", 5),
        ("placement", 0),
    ],
)
def test_a_header_asks_for_a_version(header: str, minor: int) -> None:
    assert negotiated(header) == minor


@pytest.mark.parametrize(
    ("header", "status", "why"),
    [
        ("placement 0.5", 406, "Unacceptable version header: 0.5"),
        ("placement 1.40", 406, "Unacceptable version header: 1.40"),
        ("placement 2.0", 406, "Unacceptable version header: 2.0"),
        ("placement pony.horse", 400, "invalid version string: pony.horse"),
        ("placement 1.2.3", 400, "invalid version string: 1.2.3"),
        ("placement LATEST", 400, "invalid version string: LATEST"),
        ("placement 1", 400, "invalid version string: 1"),
        ("placement 1.-1", 400, "invalid version string: 1.-1"),
        ("placement 1.١", 400, "invalid version string"),
    ],
)
def test_a_version_that_is_none_is_refused(header: str, status: int, why: str) -> None:
    with pytest.raises(Problem) as refusal:
        negotiated(header)
    assert refusal.value.status == status
    assert why in refusal.value.why


BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"


@pytest.mark.parametrize(
    ("accept", "json_is_good", "errors_as"),
    [
        ("", True, "application/json"),
        ("*/*", True, "application/json"),
        ("application/json", True, "application/json"),
        ("application/*", True, "application/json"),
        ("application/json; charset=utf-8", True, "application/json"),
        ("text/html", False, "text/html"),
        ("text/*", False, "text/html"),
        (BROWSER, True, "text/html"),
        ("text/html;q=0.5, application/json", True, "application/json"),
        ("application/json;q=0, */*", False, "text/html"),
        ("application/json;q=0", False, None),
        ("text/plain", False, None),
        ("application/xml", False, None),
        ("*/*;q=x", False, None),
    ],
)
def test_accepted_content_types(accept: str, json_is_good: bool, errors_as: str | None) -> None:
    assert takes_json(accept) is json_is_good
    assert best(accept) == errors_as


def test_in_html_nothing_of_the_client_is_markup() -> None:
    kind, body = Problem(400, "<script>alert(1)</script>").rendered("text/html", "req-1", 0)
    assert kind == "text/html; charset=UTF-8"
    assert b"<script>" not in body
    assert b"&lt;script&gt;" in body


def test_a_sentence_never_grows_with_what_was_sent() -> None:
    assert len(Problem(400, "x" * 1_000_000).rendered("", "req-1", 0)[1]) < 5000
