"""Error messages show the description of a type in place of its regular expression."""

import pytest

from bus import topics
from bus.errors import Undecodable
from bus.invalid_requests import patterns_in
from bus.messages import BuildRequested
from bus.reading import read
from bus.vocabulary import Message


def every_message() -> set[type[Message]]:
    asked = {kind for query in topics.QUERIES for kind in (query.asks, query.answer)}
    return {topic.message for topic in topics.TOPICS} | asked


def test_every_regular_expression_has_one_description() -> None:
    described: dict[str, set[str | None]] = {}
    for kind in every_message():
        for meta in patterns_in(kind, set()):
            described.setdefault(str(meta.pattern), set()).add(meta.description)
    assert len(described) > 10
    assert {regex: texts for regex, texts in described.items() if len(texts) > 1 or None in texts} == {}


def test_a_refusal_has_the_description() -> None:
    with pytest.raises(Undecodable, match=r"^request: Expected a lower-case UUID$"):
        read(BuildRequested, b'{"request": "x", "instances": [], "flavor": {"name": "a"}}')
