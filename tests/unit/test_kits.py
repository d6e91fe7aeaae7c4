"""The kits: all that features import of berth and of the control room."""

import ast
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

import berth.kit
import control_room.kit

KITS = (berth.kit, control_room.kit)


def source(kit: ModuleType) -> str:
    assert kit.__file__ is not None
    return Path(kit.__file__).read_text(encoding="utf-8")


@pytest.mark.parametrize("kit", KITS)
def test_each_offered_name_is_defined_where_the_kit_says(kit: ModuleType) -> None:
    for name, module in kit.OFFERED.items():
        assert getattr(kit, name) is getattr(import_module(module, kit.__name__), name)


@pytest.mark.parametrize("kit", KITS)
def test_type_checkers_and_processes_import_a_name_from_the_same_module(kit: ModuleType) -> None:
    imported = {
        alias.name: node.module.removeprefix(kit.__name__)
        for node in ast.walk(ast.parse(source(kit)))
        if isinstance(node, ast.ImportFrom) and node.module not in (None, "importlib", "typing")
        for alias in node.names
        if node.module is not None
    }
    assert imported == kit.OFFERED


@pytest.mark.parametrize("kit", KITS)
def test_each_offered_name_has_a_reason(kit: ModuleType) -> None:
    lines = source(kit).splitlines()
    assert [line for line in lines if line.startswith('    "') and "  # " not in line] == []


@pytest.mark.parametrize("kit", KITS)
def test_no_module_of_a_kit_hides_a_name(kit: ModuleType) -> None:
    """`from berth.kit import NAME` would give the module of this name, once that is loaded."""
    modules = {path.stem for directory in kit.__path__ for path in Path(directory).glob("*.py")}
    assert modules & kit.OFFERED.keys() == set()


def test_a_name_that_a_kit_does_not_offer_is_refused() -> None:
    with pytest.raises(ImportError, match="names_listed"):
        exec("from berth.kit import names_listed")


def test_an_import_of_a_kit_loads_only_the_module_of_the_name() -> None:
    program = (
        "import sys; from berth.kit import time_given; from control_room.kit import duration;"
        "print(*[name for name in sys.modules if '.kit.' in name],"
        " *{'numpy', 'rich', 'sqlalchemy', 'starlette', 'typer'} & sys.modules.keys())"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["berth.kit.times", "control_room.kit.words"]
