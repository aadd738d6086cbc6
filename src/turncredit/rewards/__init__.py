"""Text matching that the rewards of several tasks share: pure functions."""
