"""The run directory: configuration, checkpoints, weights, partition."""
