"""Reservations of the capacity that moves have made free."""
