"""What hosts have, a module for each kind of hardware. A driver says it to a ProviderTree (`driver.py`)."""
