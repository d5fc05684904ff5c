"""Many results of one measurement, stored by name, and when the measured values changed."""
