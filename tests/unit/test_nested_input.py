"""Input of 20,000 nested lists is refused with a clear error wherever JSON, TOML or YAML is read."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from berth.cell_file import read_cell_file
from berth.configuration import read as read_settings
from berth.importing.bring_over_aggregates import NoAggregates
from berth.importing.bring_over_aggregates import read as read_aggregates
from berth.operations.adoptable import old_servers
from berth.operations.boot_options import flavor_instead
from berth.settings import BadSetting
from bus.codec import decode, decode_frame
from bus.errors import Undecodable
from bus.messages import BuildRequested
from bus.requests import Flavor
from ironic_sync.api import IronicRefused
from ironic_sync.api import _read as read_answer
from ironic_sync.core.node import Skipped, opened
from placement_worker.http import auth, policy, schemas
from placement_worker.http.errors import Problem
from scheduler_worker.core.attributes import UnreadableQuery, parsed

DEEP = "[" * 20_000 + "]" * 20_000
ZERO = '{"a": ' + "[" * 700 + r'"\u0000"' + "]" * 700 + "}"
CASES: dict[str, tuple[Callable[[Path], Any], type[Exception], str]] = {
    "message": (lambda _: decode(BuildRequested, DEEP.encode()), Undecodable, "got `array`"),
    "unknown field of a message": (lambda _: decode(BuildRequested, f'{{"later": {DEEP}}}'.encode()),
        Undecodable, "not JSON"),
    "frame": (lambda _: decode_frame(DEEP.encode()), Undecodable, "not a frame"),
    "HTTP body": (lambda _: schemas.PUT_TRAITS.read(DEEP.encode()), Problem, "Malformed JSON"),
    "HTTP body with U+0000": (lambda _: schemas.PUT_TRAITS.read(ZERO.encode()), Problem, "U+0000"),
    "JSON query": (lambda _: parsed(DEEP), UnreadableQuery, "not JSON"),
    "Ironic's answer": (lambda _: read_answer("GET", httpx.Response(200, text=f'{{"a": {DEEP}}}')),
        IronicRefused, "no JSON"),
    "settings": (lambda path: read_settings(file=path / "a.toml", environment={}), BadSetting, "not TOML"),
    "cell file": (lambda path: read_cell_file(path / "a.toml", "c1"), BadSetting, "not TOML"),
    "tokens in JSON": (lambda path: auth.TokenFile(path / "a.json"), auth.BadTokens, "unknown field"),
    "tokens in TOML": (lambda path: auth.TokenFile(path / "a.toml"), auth.BadTokens, "not TOML"),
    "policy in JSON": (lambda path: policy.load(path / "a.json"), policy.BadPolicy, "got `array`"),
    "Nova's aggregates": (lambda _: read_aggregates(DEEP.encode()), NoAggregates, "not JSON"),
    "servers in JSON": (lambda path: list(old_servers(path / "a.json")), BadSetting, "no JSON"),
    "servers in YAML": (lambda path: list(old_servers(path / "a.yaml")), BadSetting, "no YAML"),
    "flavor": (lambda path: flavor_instead(Flavor(name="f"), str(path / "a.json")), BadSetting,
        "no flavor in JSON"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_nested_lists_are_refused_with_a_clear_error(name: str, tmp_path: Path) -> None:
    for suffix, text in (("json", f'{{"later": {DEEP}}}'), ("yaml", DEEP), ("toml", f"a = {DEEP}")):
        (tmp_path / f"a.{suffix}").write_text(text)
    read, error, sentence = CASES[name]
    with pytest.raises(error) as refused:
        read(tmp_path)
    assert sentence in str(refused.value)


def test_a_nested_notification_of_ironic_is_skipped() -> None:
    assert isinstance(opened(DEEP.encode()), Skipped)
