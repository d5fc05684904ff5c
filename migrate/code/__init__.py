"""Carries programs over along with their checkpoints: old optimizers in source code become the same rule in optim,
Keras 3 or tf_keras. Needs LibCST, the extra `dtopt[code]`."""
