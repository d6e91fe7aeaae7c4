"""The modules that programs, drivers, filters and weighers outside of the repository import."""

import ast
import inspect
import tomllib
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

from berth.rules import HostFacts, Weigher
from berth.testing import DriverStand, OneHost, an_alternative, check_driver
from bus.requests import Flavor
from tests.support.driver_checks import broken, module_of_the_page
from tests.support.snippets import PAGES, ROOT, snippets

PUBLIC = ("berth.client", "berth.drivers", "berth.rules", "berth.testing")
OF_FEATURES = ("bus_client", "messages", "rest_client")  # modules of features that programs may import


def packages() -> set[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]
    return {name.partition(".")[0] for name in project["packages"]["find"]["include"]}


def imported(text: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


def may_import(module: str) -> bool:
    package, _, rest = module.partition(".")
    return module in PUBLIC or (package == "features" and rest.rpartition(".")[2] in OF_FEATURES)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_examples_outside_of_a_feature_import_public_modules_only(page: Path) -> None:
    """Examples in a file below features/ are written in the repository, which has other surfaces."""
    for snippet in snippets(page):
        if snippet.language == "python" and not snippet.marks.get("as", "").startswith("features/"):
            ours = {name for name in imported(snippet.text) if name.partition(".")[0] in packages()}
            assert [name for name in sorted(ours) if not may_import(name)] == [], snippet


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_module_lists_each_name_with_its_purpose(name: str) -> None:
    module = import_module(name)
    listed = [line for line in inspect.getsource(module).splitlines() if line.startswith('    "')]
    assert [line.split('"')[1] for line in listed if "  # " in line] == module.__all__
    assert module.__all__ == sorted(module.__all__, key=lambda name: (name.islower(), name))
    assert all(hasattr(module, each) for each in module.__all__)


def test_the_page_of_public_modules_names_all_of_them() -> None:
    page = (ROOT / "docs/python.md").read_text(encoding="utf-8")
    assert [line.split("`")[1] for line in page.splitlines() if line.startswith("| `")] == [*PUBLIC]


def test_a_weigher_is_tested_with_a_host_and_a_request() -> None:
    host = HostFacts(root="r", host="h1", cell="c1", agent="a1", free={"VCPU": 6})
    packs = Weigher("packs", lambda view, request: request.flavor.vcpus - view.free("VCPU"), 1.0)
    large = an_alternative(Flavor(name="large", vcpus=4, memory_mb=1, disk_gb=0))
    assert packs.value(OneHost(host), large) == -2


def test_a_request_that_contradicts_itself_is_refused() -> None:
    with pytest.raises(ValueError, match="resources:VCPU"):
        an_alternative(Flavor(name="f", vcpus=1, memory_mb=1, disk_gb=0, extra_specs={"resources:VCPU": "x"}))


async def test_a_guest_driver_is_checked_as_by_the_command(tmp_path: Path) -> None:
    driver = module_of_the_page("folders").FolderDriver
    results = await check_driver(DriverStand(lambda: driver(path=str(tmp_path))))
    assert len(results) > 10 and broken(results) == {}
