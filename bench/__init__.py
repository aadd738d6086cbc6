"""What this machine takes for a training step and its parts, and what others take for the same."""
