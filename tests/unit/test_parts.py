"""Parts of messages: what a feature adds to a message of the kernel."""

from typing import ClassVar

import msgspec
import pytest

from bus import parts, reading
from bus.errors import Undecodable
from bus.messages import BuildRequested
from bus.parts import ClaimParts, ConsumerPart, PartTypes, RequestPart, RequestParts
from bus.protocol import encode
from bus.reading import read
from bus.requests import Flavor
from bus.vocabulary import Id
from tests.support.ids import uid


class ColorPart(RequestPart, frozen=True, kw_only=True):
    """The color of a request, and its shade in the hints."""

    flat: ClassVar = {"color": "", "shade": "hints"}

    color: str = ""
    shade: Id | None = None


class ColorClaim(ConsumerPart, frozen=True, kw_only=True):
    color: str


@pytest.fixture(autouse=True)
def types(monkeypatch: pytest.MonkeyPatch) -> PartTypes:
    made = PartTypes()
    made.add("colors", RequestParts, ColorPart)
    made.add("colors", ClaimParts, ColorClaim)
    monkeypatch.setattr(parts, "TYPES", made)
    monkeypatch.setattr(reading, "TYPES", made)
    monkeypatch.setattr(reading, "_fields_of", reading._fields_of.__wrapped__)  # not cached
    return made


FLAVOR = Flavor(name="small", vcpus=1)
PLAIN = BuildRequested(request=uid(1), instances=(uid(2),), flavor=FLAVOR)
RED = RequestParts(ColorPart(color="red"))


def body(**fields: object) -> bytes:
    return msgspec.json.encode({**msgspec.json.decode(encode(PLAIN)), **fields})


def test_a_part_of_another_kind_of_message_is_refused_when_it_is_added() -> None:
    with pytest.raises(ValueError, match="ColorClaim: RequestParts hold parts of the type RequestPart"):
        PartTypes().add("colors", RequestParts, ColorClaim)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"sizes": {}}, "parts.sizes: no such feature"),
        ({"colors": {"color": 1}}, "parts.colors.color: Expected `str`, got `int`"),
        ({"colors": []}, "parts.colors: Expected `object`, got `array`"),
        ([], "parts: Expected `object`"),
    ],
)
def test_a_wrong_part_is_refused_with_its_path(given: object, why: str) -> None:
    with pytest.raises(Undecodable) as refused:
        read(BuildRequested, body(parts=given))
    assert str(refused.value) == why


def test_a_stored_message_keeps_the_part_of_a_deleted_feature() -> None:
    stored = body(parts={"sizes": {"size": 3}, "colors": {"color": "red"}})
    message = parts.stored_decoder(BuildRequested).decode(stored)
    assert message.parts == RED
    changed = msgspec.structs.replace(message, parts=message.parts.having(ColorPart(color="blue")))
    again = msgspec.json.decode(parts.stored_encoder().encode(changed))["parts"]
    assert again == {"sizes": {"size": 3}, "colors": {"color": "blue"}}
    assert msgspec.json.decode(encode(changed))["parts"] == {"colors": {"color": "blue"}}


@pytest.mark.parametrize(
    ("fields", "part"),
    [
        ({"color": "red"}, ColorPart(color="red")),
        ({"hints": {"shade": uid(3)}}, ColorPart(shade=uid(3))),
        ({"color": "red", "hints": {"shade": uid(3)}}, ColorPart(color="red", shade=uid(3))),
        ({"color": ""}, None),
        ({"hints": {"shade": None}}, None),
    ],
)
def test_clients_may_write_fields_of_a_part_like_fields_of_the_kernel(
    fields: dict[str, object], part: ColorPart | None
) -> None:
    message = read(BuildRequested, body(**fields))
    assert message.parts == RequestParts(part)
    assert message.unknown_fields == ()


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"color": 1}, "color: Expected `str`, got `int`"),
        ({"hints": {"shade": "dark"}}, "hints.shade: Expected a lower-case UUID"),
    ],
)
def test_a_wrong_field_is_refused_with_the_path_that_the_client_wrote(
    fields: dict[str, object], why: str
) -> None:
    with pytest.raises(Undecodable) as refused:
        read(BuildRequested, body(**fields))
    assert str(refused.value) == why


def test_a_misspelled_field_of_a_part_is_noted() -> None:
    given = body(colour="red", hints={"shades": 1})
    assert read(BuildRequested, given).unknown_fields == (
        "colour: not known here; did you mean color?",
        "hints.shades: not known here; did you mean shade?",
    )


def test_a_feature_has_one_part_in_a_message_and_adds_it_before_messages_are_read(types: PartTypes) -> None:
    with pytest.raises(ValueError, match="ColorClaim"):
        types.add("colors", RequestParts, ColorClaim)
    types.freeze()
    with pytest.raises(ValueError, match="too late"):
        types.add("shapes", RequestParts, ColorClaim)


def test_parts_are_replaced_by_type_and_compared_by_value() -> None:
    both = RED.having(ColorClaim(color="blue"))
    assert (both.get(ColorClaim), len(both)) == (ColorClaim(color="blue"), 2)
    assert both.having(ColorPart(color="green")).get(ColorPart) == ColorPart(color="green")
    assert both.without(ColorClaim) == RED != both
    assert hash(both.without(ColorClaim)) == hash(RED)
    assert not RequestParts(None) and RED
