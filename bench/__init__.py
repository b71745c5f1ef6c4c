"""Figures of towline, measured beside what they compete with: `python -m bench`, or `make bench`.

A subject is a file with a `measure` that yields figures; `stage.py` starts the real processes it measures. Nothing here
is imported by towline, and nothing here is a test: a missed goal is a line in the table, not a failure.
"""
