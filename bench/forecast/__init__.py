"""Predict the memory and traffic of a model and its optimizer on a mesh of any size: arithmetic only, no TensorFlow."""
