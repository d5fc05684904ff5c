"""Measure how fast checkpoints are migrated, compared with `cp` of the same files."""
