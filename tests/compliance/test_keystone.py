"""Tokens of a real Keystone: berth answers as OpenStack Placement does, also while Keystone is away."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import openstack
import pytest

from deploy.keystone import REGION, KeystoneServer
from deploy.placement import BERTH, ROOT, ApiAccess, BerthPlacement, KeystoneUser, OpenStackPlacement

TOKEN_SECONDS = 600
LATEST = {"openstack-api-version": "placement 1.39"}


@dataclass
class TestedCloud:
    """A Keystone with users, a berth and an OpenStack Placement that check tokens there."""

    keystone: KeystoneServer
    berth: str
    placement: str
    users: dict[str, KeystoneUser]

    def connect(self, user: str, **more: str) -> Any:
        return _connection(self.users[user], **more)

    def token(self, user: str, **more: Any) -> str:
        return str(self.connect(user, **more).auth_token)

    def both(self, method: str, path: str, **headers: str) -> list[httpx.Response]:
        """Return the answers of berth and of OpenStack Placement to the same request."""
        sent = LATEST | {name.replace("_", "-"): value for name, value in headers.items()}
        urls = self.berth, self.placement
        return [httpx.request(method, url + path, headers=sent, timeout=60.0) for url in urls]


@cache
def _connection(user: KeystoneUser, **more: str) -> Any:
    options = user.options | more
    return openstack.connect(auth={k: v for k, v in options.items() if v}, region_name=REGION)


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestedCloud]:
    with ExitStack() as stack:
        directory = tmp_path_factory.mktemp("cloud")
        keystone = stack.enter_context(KeystoneServer(directory / "keystone", token_seconds=TOKEN_SECONDS))
        users = _people(keystone)
        access = ApiAccess(keystone=users["placement"])
        berth, placement = (
            stack.enter_context(
                kind(directory / kind.name, f"sqlite+aiosqlite:///{directory / kind.name}.sqlite", access)
            ).base_url
            for kind in (BerthPlacement, OpenStackPlacement)
        )
        yield TestedCloud(keystone, berth, placement, users)


def _people(keystone: KeystoneServer) -> dict[str, KeystoneUser]:
    """Make users with one role each; return them by name, with the administrator."""
    admin = openstack.connect(auth=keystone.admin.options, region_name=REGION).identity
    roles = {role.name: role for role in admin.roles()}
    for name in ("service", "stranger"):
        roles[name] = next((role for role in admin.roles(name=name)), None) or admin.create_role(name=name)
    made = {"admin": keystone.admin}
    for name, role, project in (
        ("placement", "service", "service"), ("nova", "service", "service"), ("ann", "reader", "mine"),
        ("bob", "member", "yours"), ("eve", "stranger", "mine"),
    ):  # fmt: skip
        place = admin.find_project(project) or admin.create_project(name=project, domain_id="default")
        user = admin.create_user(name=name, password=f"{name}-password", domain_id="default")
        admin.assign_project_role_to_user(place, user, roles[role])
        made[name] = KeystoneUser(keystone.url, name, f"{name}-password", project)
    admin_user, member = admin.find_user("admin"), roles["admin"]
    admin.assign_system_role_to_user(admin_user, member, "all")
    admin.assign_domain_role_to_user("default", admin_user, member)
    return made


def answers(found: list[httpx.Response]) -> list[tuple[int, str, Any]]:
    """Return what clients read of answers: status, challenge, and the body of a refusal."""
    read = []
    for answer in found:
        body = answer.json() if answer.content and answer.status_code >= 400 else None
        for error in (body or {}).get("errors", ()):
            error.pop("request_id")
            error["detail"] = error["detail"].strip()
        read.append((answer.status_code, answer.headers.get("www-authenticate", ""), body))
    return read


@pytest.mark.parametrize("user", ["admin", "nova", "ann", "bob", "eve"])
@pytest.mark.parametrize(
    "path", ["/resource_providers", "/usages?project_id=PROJECT", "/usages?project_id=another", "/traits"]
)
def test_roles_permit_what_they_permit_at_openstack_placement(
    cloud: TestedCloud, user: str, path: str
) -> None:
    connection = cloud.connect(user)
    path = path.replace("PROJECT", connection.current_project_id)
    ours, theirs = answers(cloud.both("GET", path, x_auth_token=connection.auth_token))
    assert ours == theirs


@pytest.mark.parametrize(
    "scope",
    [
        {"project_name": "", "project_domain_name": "", "system_scope": "all"},
        {"project_name": "", "project_domain_name": "", "domain_id": "default"},
        {"project_name": "", "project_domain_name": ""},
    ],
    ids=["system", "domain", "no scope"],
)
def test_a_token_without_a_project_permits_nothing(cloud: TestedCloud, scope: dict[str, str]) -> None:
    token = cloud.token("admin", **scope)
    found = cloud.both("GET", "/resource_providers", x_auth_token=token)
    assert [answer.status_code for answer in found] == [403, 403]


@pytest.mark.parametrize("headers", [{}, {"x_auth_token": "forged"}, {"x_auth_token": "admin"}])
def test_without_a_valid_token_the_answer_names_keystone(cloud: TestedCloud, headers: dict[str, str]) -> None:
    ours, theirs = answers(cloud.both("GET", "/resource_providers", accept="application/json", **headers))
    assert ours == theirs and ours[:2] == (401, f'Keystone uri="{cloud.keystone.url}"')


@pytest.mark.parametrize(
    "alter",
    [
        lambda token: token[:-8],
        lambda token: token[:60] + ("A" if token[60] != "A" else "B") + token[61:],
        lambda token: token + token,
        lambda token: token.swapcase(),
        lambda token: "x" * 8000,
    ],
    ids=["cut off", "one letter changed", "doubled", "other case", "long"],
)
def test_an_altered_token_is_refused(cloud: TestedCloud, alter: Callable[[str], str]) -> None:
    token = cloud.token("admin")
    found = cloud.both("GET", "/resource_providers", accept="application/json", x_auth_token=alter(token))
    ours, theirs = answers(found)
    assert ours == theirs and ours[0] == 401
    [valid, _] = cloud.both("GET", "/resource_providers", x_auth_token=token)
    assert valid.status_code == 200


def test_a_revoked_token_is_refused(cloud: TestedCloud) -> None:
    token = openstack.connect(auth=cloud.users["ann"].options).auth_token
    revoke(cloud, token)
    found = cloud.both("GET", "/usages?project_id=mine", x_auth_token=token)
    assert [answer.status_code for answer in found] == [401, 401]


def revoke(cloud: TestedCloud, token: str) -> None:
    cloud.connect("admin").identity.delete("/auth/tokens", headers={"X-Subject-Token": token})


def test_a_request_of_a_user_in_the_name_of_a_service(cloud: TestedCloud) -> None:
    ann, nova = cloud.connect("ann"), cloud.token("nova")
    path = f"/usages?project_id={ann.current_project_id}"
    for token, service in ((ann.auth_token, nova), (ann.auth_token, "forged"), ("forged", nova)):
        ours, theirs = answers(cloud.both("GET", path, x_auth_token=token, x_service_token=service))
        assert ours == theirs


def test_a_client_with_a_password_finds_berth_in_the_catalogue(cloud: TestedCloud, tmp_path: Path) -> None:
    environment = {f"OS_{name.upper()}": value for name, value in cloud.keystone.admin.options.items()}
    command = [str(BERTH), "-m", "berth", "openstack", "register", "--region", REGION, "--json"]

    def register(*words: str) -> list[dict[str, Any]]:
        done = subprocess.run(
            [*command, *words], capture_output=True, text=True, cwd=tmp_path,
            env=os.environ | environment | {"PYTHONPATH": str(ROOT)},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]

    shown = register("--url", cloud.placement)
    assert [entry["found"] for entry in shown] == [None] * 4
    assert register("--url", cloud.placement) == shown  # nothing was made
    register("--url", cloud.placement, "--apply")
    moved = register("--url", cloud.berth, "--apply")
    assert {entry["found"] for entry in moved[1:]} == {cloud.placement}
    nova = openstack.connect(auth=cloud.users["nova"].options, region_name=REGION)
    assert nova.endpoint_for("placement").rstrip("/") == cloud.berth
    provider = nova.placement.create_resource_provider(name="host1")
    assert [found.name for found in nova.placement.resource_providers()] == ["host1"]
    nova.placement.delete_resource_provider(provider)
    register("--url", cloud.placement, "--apply")  # and back
    nova = openstack.connect(auth=cloud.users["nova"].options, region_name=REGION)
    assert nova.endpoint_for("placement").rstrip("/") == cloud.placement


def test_an_expired_token_is_refused_unless_a_service_presents_it(cloud: TestedCloud) -> None:
    def tokens(*names: str) -> list[str]:
        return [openstack.connect(auth=cloud.users[name].options).auth_token for name in names]

    def started_with(token_seconds: int) -> None:
        cloud.keystone.stop()
        cloud.keystone.token_seconds = token_seconds
        cloud.keystone.start()

    url = f"{cloud.berth}/usages?project_id={cloud.connect('ann').current_project_id}"
    started_with(token_seconds=1)
    expired, expired_service = tokens("ann", "nova")
    started_with(token_seconds=TOKEN_SECONDS)
    valid, service, stranger = tokens("ann", "nova", "eve")

    def presented(user_token: str, **service_token: str) -> int:
        headers = {"x-auth-token": user_token} | {
            name.replace("_", "-"): token for name, token in service_token.items()
        }
        return httpx.get(url, headers=LATEST | headers, timeout=60.0).status_code

    assert presented(expired) == 401
    assert presented(expired, x_service_token=service) == 200
    assert presented(expired, x_service_token=stranger) == 401  # its user does not have the role service
    assert presented(expired, x_service_token=expired_service) == 401
    assert presented(valid, x_service_token=expired_service) == 401
    assert presented(valid) == 200


def test_while_keystone_is_away_known_tokens_count_and_others_are_put_off(cloud: TestedCloud) -> None:
    # new tokens: what berth knows of those of other tests may expire at any time
    ann, bob = (openstack.connect(auth=cloud.users[name].options) for name in ("ann", "bob"))
    path = f"{cloud.berth}/usages?project_id={ann.current_project_id}"
    known, unknown = (LATEST | {"x-auth-token": token} for token in (ann.auth_token, bob.auth_token))
    assert httpx.get(path, headers=known, timeout=60.0).status_code == 200
    cloud.keystone.stop()
    try:
        assert httpx.get(path, headers=known, timeout=60.0).status_code == 200
        answer = httpx.get(path, headers=unknown, timeout=60.0)
        assert answer.status_code == 503 and answer.headers["retry-after"]
        assert "Keystone" in answer.json()["errors"][0]["detail"]
        assert httpx.get(f"{cloud.berth}/healthz").status_code == 200
    finally:
        cloud.keystone.start()
    assert httpx.get(path, headers=unknown, timeout=60.0).status_code == 403
