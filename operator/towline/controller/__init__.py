"""The operator: watches AgentRuns, gives each its harness and its sandbox, and tells in the status what it sees.

Named controller, never operator, which is a module of the standard library. One pure function, `plan.py`, decides;
`handlers.py` alone imports Kopf; what is done begins in `carry_out.py`.
"""
