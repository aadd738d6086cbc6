"""Real data: what is downloaded, how it is checked, and how it becomes the files that a run reads."""
