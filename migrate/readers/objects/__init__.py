"""What checkpoints of objects (TF2's `tf.train.Checkpoint`) and SavedModels hold, part by part."""
