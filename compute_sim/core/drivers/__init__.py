"""The hardware of hosts, one module for each type. A driver adds it to a ProviderTree (`driver.py`)."""
