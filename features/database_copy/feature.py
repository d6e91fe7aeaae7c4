"""Declares the feature database_copy."""

from bus.feature import Feature

FEATURE = Feature(
    name="database_copy",
    says="copies a database to another PostgreSQL server while workers use it",
    commands={"Inspect and check": {"database": "commands"}},
    command_groups={
        "database": "Move a database to another PostgreSQL server while workers use it"
        " (docs/howto/another-database.md)."
    },
)
