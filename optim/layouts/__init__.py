"""Where variables and slots lie on meshes: layouts, placements of slots, and meshes as JSON."""
