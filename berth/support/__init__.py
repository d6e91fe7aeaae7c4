"""The support bundle of `berth debug`, and the check before an upgrade."""
