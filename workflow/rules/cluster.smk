# Set-up for jobs on a cluster. Their resources are in profiles/slurm/.

import signal
import threading

# Before a time limit SLURM sends SIGUSR1 to every process of a job, and it would end the job's Snakemake. Snakemake
# ignores it here, and so do the commands it starts, unless they handle it (`turncredit train` saves its state).
if threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)

# Snakemake adds profiles/default to every other profile. Its `cores: all` are the cores of this machine, and would
# limit the threads of the cluster's jobs.
if workflow.global_resources["_nodes"].value is not None:
    workflow.global_resources["_cores"] = None
