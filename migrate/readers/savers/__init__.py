"""What checkpoints of `tf.train.Saver` hold, part by part."""
