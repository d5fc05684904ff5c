"""The public optimizers: each a signature, its hyperparameters' ranges, and a rule."""
