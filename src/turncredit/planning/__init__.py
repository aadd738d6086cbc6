"""Plans runs before they start: batch sizes, memory, time and disk space."""
