"""Tasks as plug-ins: the protocol of environments, and one sub-package a task."""
