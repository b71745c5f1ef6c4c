"""Processes and pods of a real cluster, killed at every kind of moment: `python -m e2e.kills`, `make kill-cluster`."""
