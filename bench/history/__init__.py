"""Many results of one measurement: where they are kept by name, and when what they measure changed."""
