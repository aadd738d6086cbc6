"""What a run needs, before it is run: batch arithmetic, memory, time and disk."""
