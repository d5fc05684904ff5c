"""Files as bytes: containers, checksums, arrays that are read when asked for. Knows nothing of optimizers."""
