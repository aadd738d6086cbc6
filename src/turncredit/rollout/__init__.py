"""Episodes: chains and trees of sampled turns."""
