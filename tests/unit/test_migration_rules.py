"""The lint of migrations refuses what blocks running workers or breaks the previous version."""

import runpy
from collections.abc import Callable, Iterable

import pytest

from tests.support.berth_processes import ROOT

problems: Callable[[str], Iterable[tuple[int, str]]] = runpy.run_path(str(ROOT / "scripts/migration-rules"))[
    "problems"
]
FILE = """
revision = "0002"
down_revision = {before}
{further}
def upgrade():
    {operation}
"""


def problems_of(operation: str, *, before: str = '"0001"', further: str = "") -> list[str]:
    source = FILE.format(before=before, further=further, operation=operation)
    return [problem for _, problem in problems(source)]


@pytest.mark.parametrize(
    "operation",
    [
        "op.create_table('things', sa.Column('id', sa.BigInteger))",
        "op.create_table('new', sa.Column('id', sa.Text)); op.create_index('by_id', 'new', ['id'])",
        "op.add_column('things', sa.Column('word', sa.Text))",
        "op.add_column('things', sa.Column('word', sa.Text, nullable=False, server_default='x'))",
        "op.create_index('by_word', 'things', ['word'], if_not_exists=True)",
        "op.create_check_constraint('short', 'things', 'n < 9', postgresql_not_valid=True)",
    ],
)
def test_an_addition_is_accepted(operation: str) -> None:
    assert problems_of(operation) == []


@pytest.mark.parametrize(
    ("operation", "reason"),
    [
        (
            "op.add_column('things', sa.Column('n', sa.Integer, nullable=False))",
            "rows of the previous version",
        ),
        ("op.add_column('things', sa.Column('at', server_default=sa.func.now()))", "rewrites the table"),
        ("op.add_column('things', COLUMN)", "write the column here"),
        ("op.create_index('by_word', 'things', ['word'])", "stops writers"),
        ("op.create_unique_constraint('one', 'things', ['word'])", "scans the table"),
        ("op.alter_column('things', 'word', nullable=False)", "rewrites or scans"),
        ("op.rename_table('things', 'others')", "breaks the previous version"),
        ("op.execute('UPDATE things SET word = 1')", "change rows in code"),
        ("op.drop_column('things', 'word')", "state `oldest`"),
        ("op.something_new('things')", "is not known to be safe"),
    ],
)
def test_a_blocking_or_breaking_operation_is_refused(operation: str, reason: str) -> None:
    [problem] = problems_of(operation)
    assert reason in problem


def test_a_removal_states_the_oldest_code_that_works_without_it() -> None:
    assert problems_of("op.drop_column('things', 'word')", further='oldest = "0002"') == []


def test_the_first_migration_of_a_package_is_not_checked() -> None:
    assert problems_of("op.execute('CREATE VIEW everything')", before="None") == []
