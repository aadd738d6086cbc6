# What a job on a cluster has to know that one on this machine need not. Resources are in profiles/slurm/.

import signal
import threading

# SLURM's warning before a time limit reaches every process of a job, Snakemake's own too, which it would end. It is
# meant for programs that listen to it (turncredit train); ignored here, it stays ignored in all that is started.
if threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)

# Snakemake adds profiles/default to every other profile, and its `cores: all` are this machine's: a cluster's jobs
# must not be cut to them.
if workflow.global_resources["_nodes"].value is not None:
    workflow.global_resources["_cores"] = None
