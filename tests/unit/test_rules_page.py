"""The output of `berth rules` equals the page in docs."""

from pathlib import Path
from typing import Any

import pytest

from berth import rule_table
from berth.choice import policy
from berth.settings import BadSetting, Settings
from scheduler_worker import all_rules, all_weighers
from scheduler_worker.core.rules import RULES
from scheduler_worker.core.weighing import WEIGHERS

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "rules.md"
BEGIN, END = "<!-- berth rules --markdown -->", "<!-- end of berth rules -->"


def test_the_tables_of_the_page_are_those_the_code_has() -> None:
    written = PAGE.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0]
    assert written.strip() == rule_table.markdown(Settings()).strip(), (
        f"{PAGE.name} is behind the code: put what `berth rules --markdown` prints between its marks"
    )


def test_every_rule_and_weigher_says_what_it_does() -> None:
    made = policy(Settings())
    rows = [*all_rules(made, {}, {}), *all_weighers(made, {}, {})]
    assert {row.name for row in rows} == {*RULES, *WEIGHERS}
    assert all(row.says.endswith(".") and len(row.says) < 150 for row in rows)


def row_of(kind: str, name: str, **said: Any) -> dict[str, Any]:
    rows = rule_table.as_json(Settings().having(**said))[kind]
    return next(row for row in rows if row["name"] == name)


@pytest.mark.parametrize(
    ("kind", "name", "settings", "shown"),
    [
        ("filters", "io_ops", {}, {"on": True, "options": {"max_io_ops_per_host": 8}}),
        ("filters", "io_ops", {"scheduler_filters": ("up",)}, {"on": False}),
        ("filters", "num_instances", {"scheduler_rules": {"num_instances": {"max_instances_per_host": 3}}},
         {"on": True, "options": {"max_instances_per_host": 3}}),
        ("weighers", "ram", {"scheduler_weighers": {"cpu": 2.0}}, {"on": False, "multiplier": 1.0}),
        ("weighers", "pci", {"pci_aliases": {"gpu": "CUSTOM_GPU CUSTOM_HBM"}},
         {"options": {"classes": ["PCI_DEVICE", "PGPU", "VGPU", "SRIOV_NET_VF", "CUSTOM_GPU"]}}),
        ("weighers", "num_instances", {}, {"on": False, "multiplier": 0.0}),
    ],
)  # fmt: skip
def test_settings_are_shown(kind: str, name: str, settings: dict[str, Any], shown: dict[str, Any]) -> None:
    row = row_of(kind, name, **settings)
    assert {key: row[key] for key in shown} == shown


def test_custom_functions_are_shown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "my_rules.py").write_text(
        'def calm(host, wish):\n    """It is calm."""\n\n\n'
        "def size(host, wish):\n    return 1.0\n\n\n"
        "def broken():\n    return 7\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    settings = Settings().having(
        scheduler_filters=("my_rules:calm",), scheduler_weighers={"my_rules:size": 2.0}
    )
    assert rule_table.filters(settings)[0].says == "It is calm."
    assert rule_table.weighers(settings)[0].multiplier == 2.0
    with pytest.raises(
        BadSetting, match=r"scheduler_filters = .*: 'my_rules:broken' makes a int, not a Rule"
    ):
        policy(Settings().having(scheduler_filters=("my_rules:broken",)))
    with pytest.raises(BadSetting, match="there is no function 'none' in 'my_rules'"):
        policy(Settings().having(scheduler_filters=("my_rules:none",)))


def test_settings_reach_the_policy() -> None:
    settings = Settings().having(host_subset_size=3, scheduler_near=0.5)
    made = policy(settings)
    assert (made.subset, made.near) == (3, 0.5)
    assert made.cells == frozenset(settings.cell_names)
