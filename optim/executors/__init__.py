"""Two ways to run one step: `portable` with TensorFlow's own (D)Tensor ops, `local` shard by shard on each device."""
