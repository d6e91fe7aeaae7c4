"""All of placement's SQL."""
