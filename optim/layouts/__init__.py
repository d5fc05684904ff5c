"""Placement of variables and slots on meshes: layouts, policies for slots, and meshes as JSON."""
