"""The checks of `tools/gpu_checks.py`, by subject; `device.py` is where they run."""
