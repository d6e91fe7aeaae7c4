"""Access to PostgreSQL and SQLite databases: connections, transactions, statements, migrations."""
