"""`/berth/explain`, `/berth/providers` and `/berth/openapi.json` over HTTP."""

from typing import Any

import pytest

from tests.support.http_placement import HttpPlacement, error_of
from tests.support.ids import uid

A, B = uid(1, "a"), uid(2, "a")


@pytest.mark.parametrize("minor", [0, 10, 39])
async def test_explain_takes_the_same_query(near: HttpPlacement, minor: int) -> None:
    await near.provider(A, VCPU=8)
    await near.provider(B, VCPU=4)
    sent = await near.made("/berth/explain?resources=VCPU:9", method="GET", minor=minor)
    assert (sent["considered"], sent["fitting"]) == (2, 0)
    (removal,) = sent["removals"]
    assert (removal["constraint"], removal["removed"], removal["left"]) == ("VCPU: 9 free", 2, 0)
    assert (removal["code"], removal["hosts"]) == ("class", [A, B])
    assert sent["nearest"][0] == {"host": A, "lacks": "1 VCPU: asked 9, free 8", "code": "class"}
    assert sent["why"].startswith("of 2, no host remains")
    sent = await near.made("/berth/explain?resources=VCPU:5", method="GET", minor=minor)
    assert (sent["considered"], sent["fitting"], sent["why"]) == (2, 1, "")


async def test_explain_validates_like_the_api(near: HttpPlacement) -> None:
    assert error_of(await near("GET", "/berth/explain?resources=COW:1"))[0] == 400
    assert error_of(await near("GET", "/berth/explain?limit=1"))[0] == 400


def a_load_in_json(number: int, parent: int | None = None, **given: Any) -> dict[str, Any]:
    return {
        "id": uid(number, "a"),
        "name": f"host-{number}",
        "parent": None if parent is None else uid(parent, "a"),
        "inventories": {"VCPU": {"total": 8}},
        **given,
    }


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({}, "providers: the field is missing"),
        ({"providers": []}, "length >= 1"),
        ({"providers": [{"id": "x"}]}, "providers[0]"),
        ({"providers": [a_load_in_json(1, inventories={"VCPU": {"total": -1}})]}, "providers[0].inventories"),
        ([], "Expected `object`"),
    ],
)
async def test_an_invalid_load_is_refused_with_the_field(near: HttpPlacement, body: Any, says: str) -> None:
    error = error_of(await near("POST", "/berth/providers", body))
    assert (error[0], says in error[2]) == (400, True), error
