"""`berth access list` lists tokens and RabbitMQ users, each with its role, its age and how to revoke it."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from berth.commands import credentials
from berth.kit.credentials import Credential
from berth.settings import Settings
from bus.audit_trail import ActRecord, Operator, Outcome
from tests.support.command_line import CommandLine, no_berth_answers
from tests.support.ids import uid

TOKENS = """
[[tokens]]
token = "secret of ann"
user = "ann"
project = "p"
roles = ["operator"]
cells = ["c1"]
since = 2026-11-26T06:00:00Z

[[tokens]]
token = "secret of nova"
user = "nova"
project = "service"
roles = ["service"]
"""


async def test_tokens_are_listed_with_role_limits_age_and_without_secrets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "tokens.toml").write_text(TOKENS)
    monkeypatch.setenv("BERTH_PLACEMENT_TOKENS", str(tmp_path / "tokens.toml"))
    monkeypatch.setenv("BERTH_PLACEMENT_AUTH", "tokens")
    command = CommandLine("access list", monkeypatch, capsys)
    ann, nova = await command.json()
    assert (ann["kind"], ann["name"], ann["role"], ann["cells"], ann["since"]) == (
        "token", "ann", "operator", ["c1"], 1795672800.0,
    )  # fmt: skip
    assert ann["revoke"] == f"berth access token delete {ann['id']}"
    assert (nova["role"], nova["roles"], nova["since"]) == ("reader", ["service"], 0.0)
    shown = await command()
    assert "2026-11-26 06:00" in shown and "secret" not in shown
    assert ann["id"] in await command("--kind", "token", "-o", "wide")
    assert await command("--kind", "agent") == "no credentials\n"


async def test_tokens_are_listed_although_rabbitmq_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "tokens.toml").write_text(TOKENS)
    monkeypatch.setenv("BERTH_PLACEMENT_TOKENS", str(tmp_path / "tokens.toml"))
    monkeypatch.setenv("BERTH_PLACEMENT_AUTH", "tokens")
    monkeypatch.setenv("BERTH_AMQP_URL", "amqp://127.0.0.1/")
    monkeypatch.setenv("BERTH_DATABASE_URL", "postgresql://127.0.0.1/berth")
    no_berth_answers(monkeypatch)
    shown = await CommandLine("access list", monkeypatch, capsys)(ends=1)
    assert "ann" in shown and "only tokens are listed" in shown


ANN = Credential(
    kind="client", name="ann", id="berth.client.ann", role="operator", cells=("c1",),
    revoke="berth access client delete ann",
)  # fmt: skip


def listed(*users: str, of_features: tuple[Credential, ...] = ()) -> list[dict[str, Any]]:
    settings = Settings().having(amqp_url="amqp://boss:x@127.0.0.1/")
    found = credentials.broker_credentials(settings, users, of_features, {"berth.client.ann": 7.0})
    return [msgspec.to_builtins(each) for each in found]


@pytest.mark.parametrize(
    ("user", "facts"),
    [
        ("berth.client.ann", {"kind": "client", "name": "ann", "role": "operator", "cells": ("c1",),
                              "since": 7.0, "revoke": "berth access client delete ann"}),
        ("berth-c1", {"kind": "cell", "cells": ("c1",), "revoke": "berth cell delete c1"}),
        ("berth-c1.ferry", {"kind": "ferry", "cells": ("c1",), "revoke": "berth cell delete c1"}),
        ("berth-c1.agent.a-1", {"kind": "agent", "name": "a-1", "revoke": "berth cell agent delete c1 a-1"}),
        ("boss", {"kind": "berth itself", "role": "admin"}),
        ("nova", {"kind": "RabbitMQ user", "role": "", "revoke": "rabbitmqctl delete_user nova"}),
        # its client was removed while RabbitMQ did not answer
        ("berth.client.gone", {"kind": "RabbitMQ user", "name": "berth.client.gone"}),
    ],
)  # fmt: skip
def test_a_rabbitmq_user_is_listed_with_its_purpose(user: str, facts: dict[str, Any]) -> None:
    (found,) = listed(user, of_features=(ANN,))
    assert found["id"] == user
    assert {name: found[name] for name in facts} == facts


def test_a_user_is_as_old_as_its_last_password() -> None:
    def record(at: float, user: str, asked: str, outcome: Outcome = "done") -> ActRecord:
        return ActRecord(
            id=uid(1), at=at, operator=Operator(name="x"), interface="command", act="credential", target=user,
            asked=asked, outcome=outcome,
        )  # fmt: skip

    both = "store permissions and password"
    records = [
        record(4.0, "a", both, "failed"), record(3.0, "a", "store permissions"), record(2.0, "a, b", both),
        record(1.0, "a", both),
    ]  # fmt: skip
    assert credentials.made_at(records) == {"a": 2.0, "b": 2.0}
