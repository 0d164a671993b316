"""`sm120`'s CUDA source on a CPU: see machine.h."""
