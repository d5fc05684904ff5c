"""Many checkpoints, one after the other or in several processes."""
