"""How fast checkpoints are migrated, beside `cp` of the same files."""
