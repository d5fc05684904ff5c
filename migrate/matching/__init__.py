"""Which variable a slot belongs to: by name, layer, shape or position."""
