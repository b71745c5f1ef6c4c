"""The objects that the operator makes, as plain dicts in the order of `kubectl get -o yaml`. Pure.

Called by the controller through `makers.py`, and by the `pod` sandbox provider. Every field that bears on security is
written out, never left to a default. Names and labels come from `naming` alone.
"""
