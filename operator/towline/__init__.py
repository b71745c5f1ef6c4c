"""Towline runs AI agents with the harness outside the sandbox. See docs/architecture.md."""

__version__ = "0.1.0"
