"""The AsyncAPI document of all topics and queries, and the pages that are made from it."""

import gzip
import json
from collections.abc import Iterator
from typing import Any

import pytest
from jsonschema import Draft7Validator
from jsonschema.exceptions import best_match

from berth import message_pages
from berth.composition import all_workers_without_a_bus
from berth.topology import asyncapi
from tests.support.golden_messages import GOLDEN
from tests.support.snippets import ROOT


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return json.loads(json.dumps(asyncapi(all_workers_without_a_bus())))  # type: ignore[no-any-return]


def references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"]
        for each in value.values():
            yield from references(each)
    elif isinstance(value, list):
        for each in value:
            yield from references(each)


def resolved(document: Any, reference: str) -> Any:
    for part in reference.removeprefix("#/").split("/"):
        document = document[part]
    return document


def test_the_document_is_valid_by_the_schema_of_asyncapi_3(document: dict[str, Any]) -> None:
    schema = json.loads(gzip.decompress((ROOT / "tests/data/asyncapi-3.0.0.json.gz").read_bytes()))
    wrong = [
        f"{'/'.join(map(str, error.path))}: {error.message[:200]}"
        for error in Draft7Validator(schema).iter_errors(document)
    ]
    assert wrong == []


def test_every_reference_leads_to_a_part_of_the_document(document: dict[str, Any]) -> None:
    for reference in {*references(document)}:
        assert resolved(document, reference), reference


def test_the_bytes_on_the_wire_are_valid_by_the_schemas_of_their_messages(document: dict[str, Any]) -> None:
    """Schemas of AsyncAPI 3 are of draft 7 of JSON Schema."""
    schemas = document["components"]["schemas"]
    wrong = []
    for name, sent in GOLDEN.items():
        if (message := name.partition(".")[0]) in schemas:
            schema = {**document, "$ref": f"#/components/schemas/{message}"}
            found = best_match(Draft7Validator(schema).iter_errors(json.loads(sent)))
            wrong += [f"{name}: {found.json_path}: {found.message[:200]}"] if found else []
    assert wrong == []


def test_each_message_of_the_document_is_on_a_channel_and_each_channel_in_an_operation(
    document: dict[str, Any],
) -> None:
    channels = document["channels"].values()
    assert {name for channel in channels for name in channel["messages"]} == document["components"][
        "messages"
    ].keys()
    used = {*references(document["operations"])}
    assert {f"#/channels/{name}" for name in document["channels"]} - used == set()


def test_the_document_of_a_subject_has_its_topics_with_all_their_types() -> None:
    part = json.loads(json.dumps(asyncapi(all_workers_without_a_bus(), "build")))
    addresses = {channel["address"] for channel in part["channels"].values()}
    assert "build.requested" in addresses and all(address.startswith("build.") for address in addresses)
    for reference in {*references(part)}:
        assert resolved(part, reference), reference


def test_each_message_and_each_type_is_described_on_one_page() -> None:
    workers = all_workers_without_a_bus()
    names = (*message_pages.subjects(), message_pages.TYPES)
    lines = [line for name in names for line in message_pages.page(workers, name).splitlines()]
    described = sorted(line for line in lines if line.startswith("### "))
    assert described == sorted(f"### {name}" for name in asyncapi(workers)["components"]["schemas"])


def test_a_message_is_on_the_page_of_its_first_topic() -> None:
    page = message_pages.page(all_workers_without_a_bus(), "build")
    assert "### BuildRequested\n" in page and "[Flavor](types.md#flavor)" in page


def test_the_page_of_a_feature_that_is_not_installed_says_so() -> None:
    page = message_pages.page(all_workers_without_a_bus(), "none")
    assert page == "This berth has no topics of the subject none.\n"
