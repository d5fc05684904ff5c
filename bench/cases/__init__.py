"""What is measured: workloads, optimizers with their arguments and options, meshes and layouts."""
