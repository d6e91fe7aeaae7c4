"""The scheduler's SQL: waiting requests, their owners, and decisions about unplaceable builds."""
