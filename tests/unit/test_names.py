"""Public classes have unique names across all packages."""

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = (
    "bench",
    "berth",
    "bus",
    "cell_conductor",
    "compute_sim",
    "control_room",
    "deploy",
    "ironic_sync",
    "placement_worker",
    "scheduler_worker",
    "tests",
)


def public_classes() -> Iterator[tuple[str, Path]]:
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            for node in ast.parse(path.read_text()).body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    yield node.name, path.relative_to(ROOT)


def test_no_public_class_has_the_name_of_another() -> None:
    where = defaultdict(list)
    for name, path in public_classes():
        where[name].append(str(path))
    assert len(where) > 300  # they were found at all
    assert {name: paths for name, paths in where.items() if len(paths) > 1} == {}
