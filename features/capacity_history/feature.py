"""Declares the feature capacity_history."""

from bus.feature import Feature, PageEntry

FEATURE = Feature(
    name="capacity_history",
    says="records used, free, stranded and waiting capacity over time, and forecasts when it is used up",
    adds=("messages", "scheduler", "pages", "with_waiting.scheduler"),
    commands={"resource history": "commands"},
    pages={"/capacity": PageEntry("Capacity", "Overview")},
)
