"""Files with servers of another system, in every supported format."""

import json
from pathlib import Path

import pytest

from berth.operations.adoptable import OldServer, old_servers
from berth.settings import BadSetting
from tests.support.ids import uid

ONE = uid(1)
WEB = OldServer(name="web", host="h1", flavor="m1.small", project="p")
AS_JSON = {"uuid": ONE, "name": "web", "host": "h1", "flavor": "m1.small", "project": "p"}
AS_NOVA = {
    "id": ONE.upper(),
    "name": "web",
    "OS-EXT-SRV-ATTR:host": "h1",
    "flavor": {"original_name": "m1.small", "vcpus": 2, "ram": 512, "extra_specs": {"hw:boot_menu": "true"}},
    "tenant_id": "p",
    "user_id": "u",
}


@pytest.mark.parametrize(
    ("ending", "text", "found"),
    [
        ("json", json.dumps([AS_JSON]), WEB),
        ("json", json.dumps(AS_JSON) + "\n\n", WEB),
        ("yaml", f"- uuid: {ONE}\n  name: web\n  host: h1\n  flavor: m1.small\n  project: p\n", WEB),
        ("csv", f"ID,Name,Host,Flavor,Project ID\n{ONE},web,h1,m1.small,p\n", WEB),
        ("csv", f"uuid,name,vcpus\n{ONE},web,2\n", OldServer(name="web", figures={"vcpus": 2})),
        ("json", json.dumps([AS_NOVA]), OldServer(
            name="web", host="h1", flavor="m1.small", project="p", user="u",
            figures={"vcpus": 2, "memory_mb": 512}, extra_specs={"hw:boot_menu": "true"},
        )),
    ],
)  # fmt: skip
def test_each_way_to_write_it_is_read(tmp_path: Path, ending: str, text: str, found: OldServer) -> None:
    file = tmp_path / f"servers.{ending}"
    file.write_text(text)
    assert old_servers(file) == {ONE: found}


@pytest.mark.parametrize(
    ("ending", "text", "says"),
    [
        ("json", "{", "is no JSON"),
        ("json", "[1]", "entry 1: is no object"),
        ("json", '[{"name": "web"}]', "entry 1: uuid: is missing"),
        ("yaml", "a: [", "is no YAML"),
        ("csv", f"uuid,vcpus\n{ONE},two\n", "entry 1: vcpus: 'two' is no number"),
        ("csv", f"uuid,name\n{ONE},a\n{ONE},b\n", "entry 2: says of"),
        ("json", json.dumps([{"uuid": ONE, "name": [1]}]), "entry 1: name: [1] is no word"),
        ("json", json.dumps([{"uuid": ONE, "name": "w" * 256}]), "entry 1: name: is too long"),
    ],
)
def test_what_cannot_be_read_is_said_by_entry_and_field(
    tmp_path: Path, ending: str, text: str, says: str
) -> None:
    file = tmp_path / f"servers.{ending}"
    file.write_text(text)
    with pytest.raises(BadSetting) as refused:
        old_servers(file)
    assert says in str(refused.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadSetting, match=r"nowhere\.csv: No such file"):
        old_servers(tmp_path / "nowhere.csv")
