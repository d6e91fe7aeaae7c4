"""Columns by which builds are listed: hosts, projects and names.

Only added to. What a conductor of before writes meanwhile is listed, too, but found by its root and status
only, until this one writes it.
"""

import sqlalchemy as sa
from alembic import op

revision = "0003_listed"
down_revision = "0002_leftovers"


def backfill(dialect: str) -> str:
    """There were no names; the host is that of the attempt, as its story says. The unreadable stays so."""
    if dialect == "sqlite":
        project = "json_extract(placed, '$.spec.project')"
        at = "json_extract(story, '$[1]')"
        chosen = "json_extract(placed, '$.chosen.host')"
        spare = f"json_extract(placed, '$.alternates[' || ({at} - 1) || '].host')"
        readable = "json_valid(placed) AND json_valid(story)"
    else:
        project = "CAST(placed AS json) -> 'spec' ->> 'project'"
        at = "CAST(CAST(story AS json) ->> 1 AS integer)"
        chosen = "CAST(placed AS json) -> 'chosen' ->> 'host'"
        spare = f"CAST(placed AS json) -> 'alternates' -> ({at} - 1) ->> 'host'"
        readable = "placed LIKE '{%}' AND story LIKE '[%]'"
    return (
        f"UPDATE builds SET project = coalesce({project}, ''),"
        f" host = coalesce(CASE WHEN {at} = 0 THEN {chosen} ELSE {spare} END, '') WHERE {readable}"
    )


def upgrade() -> None:
    for column in ("host", "project", "name"):
        op.add_column("builds", sa.Column(column, sa.Text, nullable=False, server_default=""))
    op.execute(backfill(op.get_bind().dialect.name))
    op.create_index("builds_project", "builds", ["project", "id"])
    op.create_index("builds_host", "builds", ["host", "id"])
    op.create_index("builds_root", "builds", ["root", "id"])
    named = sa.text("name <> ''")
    op.create_index("builds_name", "builds", ["name", "id"], postgresql_where=named, sqlite_where=named)
