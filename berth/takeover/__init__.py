"""`berth nova check`: what would go wrong in a step of taking over a region (docs/howto/nova.md)."""
