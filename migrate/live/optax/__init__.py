"""Restoring into optax transformations, which are compared by their steps."""
