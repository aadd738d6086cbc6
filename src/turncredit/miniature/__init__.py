"""The mini world: real country facts as passages and questions."""
