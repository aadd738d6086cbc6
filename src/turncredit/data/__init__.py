"""Real data: the registry of sources, their download and checks, and the data files of a scale."""
