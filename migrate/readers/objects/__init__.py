"""The parts of object checkpoints (TF2's `tf.train.Checkpoint`) and SavedModels."""
