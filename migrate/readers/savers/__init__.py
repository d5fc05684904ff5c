"""The parts of `tf.train.Saver` checkpoints."""
