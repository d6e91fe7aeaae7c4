"""Authentication over HTTP: noauth2 and token files."""

import hashlib
from pathlib import Path

import pytest

from placement_worker.http.access import (
    AccessPolicy,
    BadPolicy,
    BadTokens,
    Identity,
    TokenFile,
    UncheckedTokens,
    load_policy,
)


def identity(user: str, project: str, *roles: str, system: bool = False) -> Identity:
    return Identity(user, project, frozenset(roles), "system" if system else "project")


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
async def test_noauth2_takes_the_identity_from_headers(
    headers: dict[str, str], known: Identity | None
) -> None:
    assert await UncheckedTokens()(headers) == known


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


async def test_a_token_of_the_file_identifies_a_client(tmp_path: Path) -> None:
    file = tmp_path / "tokens.toml"
    file.write_text(TOML)
    who = TokenFile(file)
    assert await who({"x-auth-token": "ein Geheimnis"}) == identity("nova", "service", "service")
    assert await who({"x-auth-token": "another"}) == identity("ops", "admin", "admin", "reader")
    assert await who({"x-auth-token": "Another"}) is None
    assert await who({"x-auth-token": "admin", "x-roles": "admin"}) is None
    assert await who({}) is None


async def test_identity_headers_are_ignored_with_a_token(tmp_path: Path) -> None:
    file = tmp_path / "tokens.json"
    file.write_text('{"tokens": [{"token": "t", "user": "u", "project": "p", "roles": ["reader"]}]}')
    headers = {"x-auth-token": "t", "x-roles": "admin", "x-project-id": "q", "x-user-id": "v"}
    assert await TokenFile(file)(headers) == identity("u", "p", "reader")


async def test_a_change_of_the_file_counts_immediately_unless_it_cannot_be_read(tmp_path: Path) -> None:
    file = tmp_path / "tokens.toml"
    file.write_text(TOML)
    who = TokenFile(file)
    assert await who({"x-auth-token": "another"}) is not None
    old, new = (hashlib.sha256(token).hexdigest() for token in (b"another", b"a third"))
    file.write_text(TOML.replace(old, new))
    assert await who({"x-auth-token": "another"}) is None
    for broken in ("tokens = [", ""):
        file.write_text(broken)
        assert await who({"x-auth-token": "a third"}) is not None
    file.unlink()
    assert await who({"x-auth-token": "a third"}) is not None


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


def somebody(*roles: str, project: str = "p", user: str = "u", system: bool = False) -> Identity:
    return Identity(user, project, frozenset(roles), "system" if system else "project")


@pytest.mark.parametrize(
    ("rule", "roles", "allowed"),
    [
        ("@", (), True),
        ("", (), True),
        ("!", ("admin",), False),
        ("role:admin", ("admin",), True),
        ("role:ADMIN", ("admin",), True),
        ("role:admin", ("reader",), False),
        ("not role:admin", ("reader",), True),
        ("role:a or role:b", ("b",), True),
        ("role:a and role:b", ("b",), False),
        ("role:a and role:b or role:c", ("c",), True),
        ("role:a and (role:b or role:c)", ("c",), False),
        ("role:a AND NOT (role:b Or role:c)", ("a",), True),
        ("project_id:p", (), True),
        ("project_id:q", (), False),
        ("user_id:u", (), True),
        ("project_id:%(project_id)s", (), True),
        ("user_id:%(user_id)s", (), False),
        ("(project_id:%(project_id)s) and (role:reader)", ("reader",), True),
        ("rule:admin_api", ("admin",), True),
    ],
)
def test_rules_of_the_policy_language(rule: str, roles: tuple[str, ...], allowed: bool) -> None:
    policy = AccessPolicy({"placement:usages": rule})
    assert policy.allows("placement:usages", somebody(*roles), {"project_id": "p"}) is allowed


@pytest.mark.parametrize(
    ("rule", "why"),
    [
        ("role:a or", "a check is missing"),
        ("(role:a", "a parenthesis is not closed"),
        ("role:a role:b", "did not expect 'role:b'"),
        ("role:a)", "did not expect ')'"),
        ("and", "a check is missing"),
        ("is_admin:True", "'is_admin:True' is no check"),
        ("admin", "'admin' is no check"),
        ("rule:nobody_made_it", "there is no rule 'nobody_made_it'"),
        ("rule:placement:usages", "leads to itself"),
    ],
)
def test_an_invalid_policy_rule_is_refused(rule: str, why: str) -> None:
    with pytest.raises(BadPolicy, match=r"^placement:usages: ") as refusal:
        AccessPolicy({"placement:usages": rule})
    assert why in str(refusal.value)


SHOW = "placement:resource_providers:show"


def test_base_rules_can_be_changed() -> None:
    policy = AccessPolicy({"admin_or_service_api": "role:cloud"}, enforce_new_defaults=True)
    assert policy.allows(SHOW, somebody("cloud"), {})
    assert not policy.allows(SHOW, somebody("admin"), {})


@pytest.mark.parametrize(
    ("rules", "why"),
    [
        ({"placement:resource_provider:show": "@"}, f"the nearest is '{SHOW}'"),
        ({"amdin_api": "role:root"}, "the nearest is 'admin_api'"),
        ({"unlike:all:others": "@"}, "there is no rule 'unlike:all:others', and no other uses it"),
        ({"mine": "role:x", SHOW: "role:mine"}, "there is no rule 'mine'"),
        ({"berth:operator:": "role:x"}, "there is no rule 'berth:operator:'"),
    ],
)
def test_a_rule_without_effect_is_refused(rules: dict[str, str], why: str) -> None:
    with pytest.raises(BadPolicy) as refusal:
        AccessPolicy(rules)
    assert why in str(refusal.value)


LINES = """\
---
# everything for everybody
"placement:usages": "@"
'placement:traits:list': '!'
placement:traits:show:  # so far
  role:admin or
  role:x
placement:reshaper:reshape: ""
"""


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("policy.yaml", LINES),
        (
            "policy.json",
            '{"placement:usages": "@", "placement:traits:list": "!",'
            ' "placement:traits:show": "role:admin or role:x", "placement:reshaper:reshape": ""}',
        ),
        (
            "policy.toml",
            '"placement:usages" = "@"\n"placement:traits:list" = "!"\n'
            '"placement:traits:show" = "role:admin or role:x"\n"placement:reshaper:reshape" = ""\n',
        ),
    ],
)
def test_a_policy_file_is_yaml_or_json_or_toml(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    assert load_policy(tmp_path / name) == {
        "placement:usages": "@",
        "placement:traits:list": "!",
        "placement:traits:show": "role:admin or role:x",
        "placement:reshaper:reshape": "",
    }


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("policy.yaml", "placement:usages\n", "Expected `object`"),
        ("policy.yaml", "placement:usages: @\n", "line 1, column 19"),
        ("policy.yaml", "placement:usages: !\n", "Expected `str`, got `null`"),
        ("policy.json", "{", "truncated"),
        ("policy.json", '{"a": 1}', "Expected `str`"),
        ("policy.toml", "a", "Expected"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, name: str, text: str, why: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(BadPolicy, match=name) as refusal:
        load_policy(tmp_path / name)
    assert why in str(refusal.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadPolicy, match="nowhere: cannot be read: No such file"):
        load_policy(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("roles", "role"),
    [
        ((), ""),
        (("member",), ""),
        (("reader",), "reader"),
        (("service",), "reader"),
        (("operator", "reader"), "operator"),
        (("admin",), "admin"),
    ],
)
def test_the_roles_of_a_token_give_one_role_of_berth(roles: tuple[str, ...], role: str) -> None:
    assert AccessPolicy().operator(somebody(*roles), "token file").role == role


def test_a_policy_gives_roles_of_berth_to_other_roles() -> None:
    policy = AccessPolicy({"berth:operator": "role:cloud_ops or rule:berth:admin"})
    assert policy.operator(somebody("cloud_ops"), "keystone").role == "operator"
    assert policy.operator(somebody("operator"), "keystone").role == ""


OF_A_FEATURE = {"berth:things:create": "rule:berth:operator or rule:service_api"}
CELLS = {"berth:operator:c1": "role:operator_c1", "berth:operator:c-2": "role:operator_c2 or role:both"}


@pytest.mark.parametrize(
    ("roles", "role", "cells"),
    [
        (("operator_c1",), "operator", ("c1",)),
        (("reader", "operator_c1", "both"), "operator", ("c-2", "c1")),
        (("operator", "operator_c1"), "operator", ()),
        (("admin", "operator_c1"), "admin", ()),
        (("reader",), "reader", ()),
    ],
)
def test_a_rule_of_a_cell_makes_an_operator_of_this_cell(
    roles: tuple[str, ...], role: str, cells: tuple[str, ...]
) -> None:
    policy = AccessPolicy(CELLS, of_features=OF_A_FEATURE)
    operator = policy.operator(somebody(*roles), "keystone")
    assert (operator.role, operator.cells) == (role, cells)
    assert policy.allows("berth:control_room:act", somebody(*roles), {}) == (role != "reader")
    assert not policy.allows("berth:things:create", somebody("operator_c1"), {})


def test_a_rule_of_a_cell_does_not_widen_the_limits_of_a_token() -> None:
    def cells_of(*limits: str) -> tuple[str, ...]:
        identity = Identity("u", "p", frozenset({"both", "operator_c1"}), cells=limits)
        return AccessPolicy(CELLS).operator(identity, "token file").cells

    assert (cells_of("c1", "c3"), cells_of()) == (("c1",), ("c-2", "c1"))
    assert AccessPolicy(CELLS).operator(Identity("u", "p", frozenset({"both"}), cells=("c9",)), "").role == ""


LIMITED = Identity("u", "p", frozenset({"admin"}), cells=("c1",), projects=("p1",))


@pytest.mark.parametrize(
    ("rule", "target", "may"),
    [
        ("placement:allocations:update", {}, False),
        ("placement:resource_providers:list", {}, False),
        ("berth:things:create", {}, False),
        ("placement:usages", {"project_id": "p1"}, True),
        ("placement:usages", {"project_id": "p"}, False),
        ("berth:control_room:show", {}, True),
    ],
)
def test_a_limited_token_reads_its_projects_only(rule: str, target: dict[str, str], may: bool) -> None:
    assert AccessPolicy(of_features=OF_A_FEATURE).allows(rule, LIMITED, target) == may
