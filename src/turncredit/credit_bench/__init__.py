"""The credit bench: what each estimator's credit is worth, measured against brute force at one fixed policy.

- ``setup``: the policy of a checkpoint, and the arms that are compared
- ``play``: plays and scores episodes; replays a prefix and continues it anew
- ``gradients``: the policy gradient of a batch under several credits at once
- ``truth``: the gradients of the expected metrics, from thousands of episodes
- ``probes``: Q and V of single turns, from resampled continuations
- ``critics``: values of a critic that is 0, fitted, or exact
- ``arms``: the batches, credits and gradients of each arm
- ``alignment``, ``turn_errors``: the statistics; pure functions
- ``records``: what is computed from probes
- ``bench``: the whole measurement, from files to one CSV file
"""
