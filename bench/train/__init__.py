"""Train small problems to a target, every peer with the same gradients."""
