"""The bill of materials of a release names every locked package with its hashes."""

import json
import re
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft7Validator

from tests.support.kubernetes import TEXT, many, record
from tests.support.snippets import ROOT

bill_of: Callable[[str, str], dict[str, Any]] = runpy.run_path(str(ROOT / "scripts/sbom"))["bill_of"]
LOCK = (ROOT / "requirements.lock").read_text(encoding="utf-8")
PURL = {"type": "string", "pattern": r"^pkg:pypi/[a-z0-9-]+@[^@ ]+$"}
COMPONENT = record(
    {
        "type": {"enum": ["library", "application"]},
        "bom-ref": PURL,
        "name": TEXT,
        "version": TEXT,
        "purl": PURL,
    },
    hashes=many(record({"alg": {"const": "SHA-256"}, "content": {"pattern": "^[0-9a-f]{64}$"}})),
    properties=many(record({"name": TEXT, "value": TEXT})),
    licenses=many(record({"license": record({"id": TEXT})})),
)
BILL = record(
    {
        "$schema": TEXT,
        "bomFormat": {"const": "CycloneDX"},
        "specVersion": {"const": "1.6"},
        "version": {"const": 1},
        "metadata": record({"component": COMPONENT}),
        "components": many(COMPONENT),
        "dependencies": many(
            record({"ref": PURL, "dependsOn": {"type": "array", "uniqueItems": True, "items": PURL}})
        ),
    }
)


def test_the_bill_has_every_locked_package_with_every_hash() -> None:
    bill = bill_of(LOCK, "1.2.0")
    assert [error.message for error in Draft7Validator(BILL).iter_errors(bill)] == []
    locked = re.findall(r"^([a-z0-9._-]+)(?:\[.*\])?==(\S+)", LOCK, re.M)
    assert [(one["name"], one["version"]) for one in bill["components"]] == locked
    digests = [one["content"] for component in bill["components"] for one in component["hashes"]]
    assert sorted(digests) == sorted(re.findall("sha256:([0-9a-f]{64})", LOCK))
    assert all(component["hashes"] for component in bill["components"])


def test_the_bill_names_what_each_package_needs() -> None:
    bill = bill_of(LOCK, "1.2.0")
    references = {one["bom-ref"] for one in (bill["metadata"]["component"], *bill["components"])}
    assert len(references) == len(bill["components"]) + 1
    needs = {one["ref"]: set(one["dependsOn"]) for one in bill["dependencies"]}
    assert needs.keys() == references and set().union(*needs.values()) <= references
    reached, waiting = set[str](), ["pkg:pypi/berth@1.2.0"]
    while waiting:
        reference = waiting.pop()
        reached.add(reference)
        waiting += needs[reference] - reached
    assert reached == references


def test_a_package_for_some_environments_has_its_marker() -> None:
    lock = (
        "a==1 ; sys_platform == 'win32' \\\n    --hash=sha256:"
        + "0" * 64
        + "\n    # via berth (pyproject.toml)\n"
    )
    (component,) = bill_of(lock, "1")["components"]
    assert component["properties"] == [{"name": "berth:marker", "value": "sys_platform == 'win32'"}]


@pytest.mark.parametrize("lock", sorted(ROOT.glob("requirements*.lock")), ids=lambda lock: lock.name)
def test_the_script_reads_every_lock_file(lock: Path, tmp_path: Path) -> None:
    texts = []
    for name in ("a.json", "b.json"):
        subprocess.run([sys.executable, ROOT / "scripts/sbom", lock, tmp_path / name], check=True)
        texts.append((tmp_path / name).read_bytes())
    assert texts[0] == texts[1]
    assert len(json.loads(texts[0])["components"]) > 20
