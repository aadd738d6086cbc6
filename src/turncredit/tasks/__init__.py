"""Tasks: the protocols of an episode, as pure environments, and their rewards."""
