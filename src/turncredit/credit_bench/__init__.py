"""The credit bench: compares each estimator's credit with brute-force estimates, at one fixed policy.

*Credit* is the advantage that an estimator gives to a token or a turn. docs/CREDIT_BENCH.md defines all quantities.

- ``setup``: the policy of a checkpoint, and the arms that are compared
- ``play``: plays and scores episodes; replays a prefix and samples other continuations
- ``gradients``: the policy gradient of a batch under several credits at once
- ``truth``: true gradients of the expected metrics, from thousands of episodes
- ``probes``: Q and V of single turns, from resampled continuations
- ``critics``: values of a critic that is 0, fitted, or exact
- ``arms``: the batches, credits and gradients of each arm
- ``alignment``, ``turn_errors``: statistics of gradients and of turns' credit; pure functions
- ``records``: rows of the table that are computed from probes
- ``bench``: the whole measurement, from files to one CSV file

Suffixes of array names here: ``_A`` arms, ``_B`` batches, ``_C`` continuations (in ``gradients``: credits), ``_D``
coordinates of a gradient, ``_H`` blocks of the true gradient (in ``critics``: hidden units), ``_J`` moments or weights,
``_M`` targets (in ``critics``: tokens of the critic), ``_P`` probes, ``_R`` rows (of turns' credit: replicates).
"""
