"""Scaling of a step over mesh shapes and clients: every mesh in processes of its own, one per DTensor client."""
