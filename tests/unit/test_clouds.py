"""Access to Ironic from clouds.yaml and OS_* variables."""

from pathlib import Path

import pytest

from ironic_sync.openstack import cloud_access, secrets_of_cloud

CLOUDS = """
clouds:
  region-one:
    auth: {auth_url: https://keystone/v3, username: berth, project_name: service,
           user_domain_name: Default, project-domain-name: Default}
    region_name: north
    interface: internal
    cacert: ca.pem
  standalone:
    auth_type: http_basic
    auth: {endpoint: "https://ironic", username: u, password: p}
    verify: false
  open: {auth_type: none, baremetal_endpoint_override: "http://ironic:6385"}
  nowhere: {auth_type: none}
  misspelled: {auth: {auth_url: https://keystone/v3, user: berth}}
  listed: {auth: [1]}
  strange: {auth_type: magic, auth: {auth_url: https://keystone/v3}}
  keyed: {auth_type: none, baremetal_endpoint_override: "https://i", key: key.pem}
  named: {auth_type: none, baremetal_endpoint_override: "https://me:pw@i"}
"""
SECURE = "clouds: {region-one: {auth: {password: geheim}}}"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("clouds.yaml").write_text(CLOUDS)
    Path("secure.yaml").write_text(SECURE)


def test_an_entry_gives_credentials_region_and_certificates_and_secure_yaml_the_password() -> None:
    access = cloud_access("region-one", environment={})
    assert (access.url, access.auth_type, access.region, access.interface) == (
        "", "password", "north", "internal",
    )  # fmt: skip
    assert (access.auth["password"], access.auth["project_domain_name"]) == ("geheim", "Default")
    assert (access.ca_file, access.insecure) == ("ca.pem", False)
    assert secrets_of_cloud("region-one") == {"geheim"}
    assert "geheim" not in repr(access)


def test_a_file_that_a_variable_names_replaces_the_usual_ones(tmp_path: Path) -> None:
    other = tmp_path / "other.yaml"
    other.write_text("clouds: {mine: {auth_type: none, baremetal_endpoint_override: 'http://mine'}}")
    assert cloud_access("mine", environment={"OS_CLIENT_CONFIG_FILE": str(other)}).url == "http://mine"


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("absent", "clouds.yaml has no cloud 'absent'; it has: keyed, listed, misspelled, "),
        ("nowhere", "clouds.yaml: nowhere: the url of Ironic's API is missing"),
        ("misspelled", "clouds.yaml: misspelled: user: unknown to the auth_type password"),
        ("listed", "clouds.yaml: listed: auth must be a table"),
        ("strange", "clouds.yaml: strange: 'magic' is no auth_type of keystoneauth1"),
        ("keyed", "clouds.yaml: keyed: a key without its certificate"),
        ("named", "contains a user name"),
        ("envvars", "the OS_* variables: the auth_url of Keystone is missing"),
    ],
)
def test_an_unusable_cloud_is_refused_with_its_file_and_key(name: str, reason: str) -> None:
    with pytest.raises(ValueError) as refused:
        cloud_access(name, environment={})
    assert reason in str(refused.value)
    assert "pw" not in str(refused.value)


@pytest.mark.parametrize("content", ["clouds: [1]", "- x", "{", "clouds: {a: 1}"])
def test_a_file_of_another_form_is_refused(content: str) -> None:
    Path("clouds.yaml").write_text(content)
    with pytest.raises(ValueError, match=r"clouds\.yaml: "):
        cloud_access("a", environment={})
