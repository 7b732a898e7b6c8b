"""Value types only: what the layers above say to each other. No I/O, no framework, no MLX."""
