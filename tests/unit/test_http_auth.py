"""Authentication over HTTP: noauth2 and token files."""

import hashlib
from pathlib import Path

import pytest

from placement_worker.http.auth import BadTokens, Identity, TokenFile, noauth2


def identity(user: str, project: str, *roles: str, system: bool = False) -> Identity:
    return Identity(user, project, frozenset(roles), system)


@pytest.mark.parametrize(
    ("headers", "known"),
    [
        ({}, None),
        ({"x-auth-token": ""}, None),
        ({"x-auth-token": "admin"}, identity("admin", "admin", "admin")),
        ({"x-auth-token": "admin", "x-roles": "reader"}, identity("admin", "admin", "admin")),
        ({"x-auth-token": "u"}, identity("u", "u")),
        ({"x-auth-token": "u:p"}, identity("u", "p")),
        ({"x-auth-token": "u", "x-roles": "Member, reader,"}, identity("u", "u", "member", "reader")),
        ({"x-auth-token": "u", "x-project-id": "q", "x-user-id": "v"}, identity("v", "q")),
        ({"x-auth-token": "u", "openstack-system-scope": "all"}, identity("u", "u", system=True)),
    ],
)
def test_noauth2_believes_what_it_is_told(headers: dict[str, str], known: Identity | None) -> None:
    assert noauth2(headers) == known


TOML = f"""\
[[tokens]]
token = "ein Geheimnis"
user = "nova"
project = "service"
roles = ["Service"]

[[tokens]]
sha256 = "{hashlib.sha256(b"another").hexdigest()}"
user = "ops"
project = "admin"
roles = ["admin", "reader"]
"""


def test_a_token_of_the_file_says_who_it_is(tmp_path: Path) -> None:
    file = tmp_path / "tokens.toml"
    file.write_text(TOML)
    who = TokenFile(file)
    assert who({"x-auth-token": "ein Geheimnis"}) == identity("nova", "service", "service")
    assert who({"x-auth-token": "another"}) == identity("ops", "admin", "admin", "reader")
    assert who({"x-auth-token": "Another"}) is None
    assert who({"x-auth-token": "admin", "x-roles": "admin"}) is None
    assert who({}) is None


def test_a_token_says_nothing_of_what_headers_claim(tmp_path: Path) -> None:
    file = tmp_path / "tokens.json"
    file.write_text('{"tokens": [{"token": "t", "user": "u", "project": "p", "roles": ["reader"]}]}')
    headers = {"x-auth-token": "t", "x-roles": "admin", "x-project-id": "q", "x-user-id": "v"}
    assert TokenFile(file)(headers) == identity("u", "p", "reader")


def test_a_change_of_the_file_counts_immediately_unless_it_cannot_be_read(tmp_path: Path) -> None:
    file = tmp_path / "tokens.toml"
    file.write_text(TOML)
    who = TokenFile(file)
    assert who({"x-auth-token": "another"}) is not None
    old, new = (hashlib.sha256(token).hexdigest() for token in (b"another", b"a third"))
    file.write_text(TOML.replace(old, new))
    assert who({"x-auth-token": "another"}) is None
    for broken in ("tokens = [", ""):
        file.write_text(broken)
        assert who({"x-auth-token": "a third"}) is not None
    file.unlink()
    assert who({"x-auth-token": "a third"}) is not None


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("t.toml", 'tokens = "geheim"', "Expected `array`"),
        ("t.toml", "geheim", "not TOML"),
        ("t.json", '{"tokens": ["geheim', "not JSON"),
        ("t.toml", "tokens = []", "there is no token in it"),
        ("t.toml", '[[tokens]]\ntoken = "geheim"\nuser = "u"\nproject = "p"\n',
         "missing required field `roles`"),
        ("t.toml",
         '[[tokens]]\ntoken = "geheim"\nsha256 = "' + "0" * 64 + '"\nuser = "u"\nproject = "p"\nroles = []\n',
         "tokens[0]: give it either token or sha256"),
        ("t.toml", '[[tokens]]\nuser = "u"\nproject = "p"\nroles = []\n', "either token or sha256"),
        ("t.toml", '[[tokens]]\nsha256 = "geheim"\nuser = "u"\nproject = "p"\nroles = []\n',
         "tokens[0].sha256"),
        ("t.toml", '[[tokens]]\ntokn = "geheim"\nuser = "u"\nproject = "p"\nroles = []\n',
         "unknown field `tokn`"),
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_used_is_named_and_its_secrets_are_not(
    tmp_path: Path, name: str, text: str, why: str
) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(BadTokens, match=name) as refusal:
        TokenFile(tmp_path / name)
    assert why in str(refusal.value)
    assert "geheim" not in str(refusal.value)
