"""Databases, PostgreSQL or SQLite: sessions, statements, migrations."""
