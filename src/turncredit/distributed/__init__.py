"""Distributed training: process group, sharded weights, torchrun and SLURM."""
