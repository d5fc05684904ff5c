"""Find the variable that a slot belongs to: by name, layer, shape or position."""
