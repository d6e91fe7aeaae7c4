"""The way of a build request through a scheduler: orders, searches, claims, fallbacks and outcomes."""
