"""How many instances of a mix of flavors would fit."""
