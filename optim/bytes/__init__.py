"""Files by name or URL, and the bundles that TensorFlow's checkpoints are, without TensorFlow."""
