"""Several processes, sharded weights and SLURM jobs."""
