"""What a model and its optimizer occupy and send on a mesh of any size: arithmetic only, no TensorFlow."""
