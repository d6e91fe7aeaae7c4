"""The scheduler's SQL: requests that wait, decisions of the unplaceable, and who is there."""
