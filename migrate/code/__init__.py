"""Migrate programs along with their checkpoints: replace old optimizers in source code by the same rule in optim, Keras
3 or tf_keras. Needs LibCST, the extra `dtopt[code]`."""
