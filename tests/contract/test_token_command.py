"""`berth access token` adds, rotates and revokes tokens of a token file; and the operator of a
command.
"""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from berth import composition
from berth.operators import command_caller
from berth.settings import BadSetting, Settings
from bus.errors import OperationRefused
from bus.local import LocalBroker, LocalTransport
from placement_worker.http.access import TokenFile, digest_of, read_tokens
from tests.support.command_line import CommandLine, no_berth_answers

Listed = Callable[[], Awaitable[str]]


@pytest.fixture(params=["tokens.toml", "tokens.json"])
def file(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / str(request.param)
    monkeypatch.setenv("BERTH_PLACEMENT_TOKENS", str(path))
    return path


@pytest.fixture
def token(file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    broker = LocalBroker()
    monkeypatch.setattr(composition, "transport", lambda settings, name: LocalTransport(broker))
    return CommandLine("access token", monkeypatch, capsys)


@pytest.fixture
def listed(token: CommandLine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Listed:
    async def tokens() -> str:
        return await CommandLine("access list", monkeypatch, capsys)("--kind", "token")

    return tokens


async def added(token: CommandLine, *words: str) -> dict[str, Any]:
    (made,) = await token.json("create", *words)
    return dict(made)


async def test_a_new_token_identifies_its_user_and_the_file_does_not_contain_it(
    token: CommandLine, file: Path, listed: Listed
) -> None:
    made = await added(token, 'änn "x"', "--role", "operator", "--cell", "c1", "--only-project", "p1")
    found = TokenFile(file).holder(digest_of(made["token"]))
    assert found is not None
    assert (found.user, found.roles, found.cells, found.projects) == (
        "änn \"x\"", frozenset({"operator"}), ("c1",), ("p1",),
    )  # fmt: skip
    assert made["token"] not in file.read_text()
    assert file.stat().st_mode & 0o777 == 0o600
    assert made["token"] not in await listed()
    assert read_tokens(file)[0].since is not None


async def test_a_rotated_token_replaces_the_former_one(token: CommandLine, file: Path) -> None:
    first = await added(token, "ann", "--role", "reader")
    file.chmod(0o640)  # readable for the group of the servers
    (second,) = await token.json("rotate", first["id"])
    known = TokenFile(file)
    assert known.holder(digest_of(first["token"])) is None
    assert known.holder(digest_of(second["token"])) is not None
    assert file.stat().st_mode & 0o777 == 0o640


async def test_a_revoked_token_is_unknown(token: CommandLine, file: Path, listed: Listed) -> None:
    first, second = (
        await added(token, "ann", "--role", "reader"),
        await added(token, "bob", "--role", "reader"),
    )
    before = file.read_bytes()
    dry = await token("delete", first["id"], "--dry-run")
    assert dry == f"token {first['id']} of ann would be revoked\n" and file.read_bytes() == before
    await token("delete", first["id"])
    assert "bob" in (shown := await listed()) and "ann" not in shown
    with pytest.raises(OperationRefused, match="the last token"):
        await token("delete", second["id"])


@pytest.mark.parametrize("words", [("delete", "zz"), ("rotate", ""), ("delete", "")])
async def test_an_unknown_id_is_refused(token: CommandLine, words: tuple[str, ...]) -> None:
    await added(token, "ann", "--role", "reader")
    with pytest.raises(OperationRefused, match="berth access list --kind token"):
        await token(*words)


async def test_a_token_needs_a_role(token: CommandLine) -> None:
    with pytest.raises(BadSetting, match="--role is missing"):
        await token("create", "ann")


async def test_tokens_can_be_made_while_no_berth_runs(
    token: CommandLine, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_berth_answers(monkeypatch)
    assert "this is not in the audit trail" in await token("create", "ann", "--role", "reader")
    assert file.exists()


# The operator of a command


async def test_a_command_acts_as_the_user_of_its_token(
    token: CommandLine, file: Path, tmp_path: Path
) -> None:
    secret = tmp_path / "ann.token"
    await token("create", "ann", "--role", "operator", "--cell", "c1", "--token-file", str(secret))
    settings = Settings().having(
        placement_auth="tokens", placement_tokens=str(file), operator_token_file=str(secret)
    )
    who = await command_caller(settings, "berth project quota set", "r")
    assert (who.operator.name, who.operator.role, who.operator.cells) == ("ann", "operator", ("c1",))
    assert (who.interface, who.through, who.request) == ("command", "berth project quota set", "r")
    secret.write_text("another")
    with pytest.raises(OperationRefused, match="is not valid"):
        await command_caller(settings, "", "")


@pytest.mark.parametrize(
    ("named", "auth", "why"),
    [("missing", "tokens", "No such file"), ("there", "noauth2", "only checked with placement_auth")],
)
async def test_an_unusable_token_file_of_the_operator_is_named(
    tmp_path: Path, named: str, auth: str, why: str
) -> None:
    (tmp_path / "there").write_text("x")
    settings = Settings().having(placement_auth=auth, operator_token_file=str(tmp_path / named))
    with pytest.raises(BadSetting, match=why):
        await command_caller(settings, "", "")


async def test_a_command_without_a_token_acts_as_the_system_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUDO_USER", "ann")
    monkeypatch.setenv("SSH_CONNECTION", "10.0.0.9 50000 10.0.0.1 22")
    who = await command_caller(Settings(), "", "")
    assert (who.operator.name, who.operator.role) == ("ann", "admin")
    assert who.operator.known_by.startswith("sudo to ")
    assert who.origin.endswith(" from 10.0.0.9")
