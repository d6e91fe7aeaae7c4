"""The scheduler's SQL: waiting requests, decisions about unplaceable builds, owners."""
