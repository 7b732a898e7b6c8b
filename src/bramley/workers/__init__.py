"""The front's side of the workers: one process per loaded model, watched and started again when it dies."""
