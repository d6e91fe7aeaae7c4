"""The settings of server groups."""

from bus.feature import Refuse, SettingsGroup


class GroupSettings(SettingsGroup, frozen=True, kw_only=True, rename=lambda name: f"max_{name}"):
    """The largest numbers of server groups. Lowered limits delete nothing."""

    groups: int = 200_000  # server groups
    groups_project: int = 10_000  # server groups of one project

    def check(self, refuse: Refuse) -> None:
        for name in ("groups", "groups_project"):
            if getattr(self, name) < 0:
                refuse(f"max_{name}", "must be at least 0")
