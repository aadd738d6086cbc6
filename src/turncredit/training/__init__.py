"""Training: seeds, budget, batches, updates, checkpoints, and the run that ties them together."""
