"""The parts of Keras's files."""
