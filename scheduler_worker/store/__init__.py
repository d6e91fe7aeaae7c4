"""The scheduler's SQL: decisions about unplaceable builds, counted demand, and the leader of schedulers."""
