"""The support bundle of `berth system bundle`, and the check before an upgrade."""
