"""Use cases. Asynchronous, on the front's event loop; knows no HTTP and no MLX."""
