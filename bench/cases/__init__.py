"""What to measure: workloads, optimizers with their arguments and options, meshes and layouts."""
