"""How close a verify kernel is to what the hardware allows."""
