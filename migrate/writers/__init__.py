"""One file per target, and shared parts. Each writes a complete file next to the destination, and then renames it."""
