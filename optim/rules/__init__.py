"""The maths of each algorithm, one file each; nothing here imports TensorFlow."""
