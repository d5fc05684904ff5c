"""What files of Keras hold, part by part."""
