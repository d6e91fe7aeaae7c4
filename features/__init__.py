"""Features of berth: each folder can be deleted together with its name in `berth/features.py`."""
