"""Containers, whole sources, folders that appear completely, arrays that are read when asked for."""
