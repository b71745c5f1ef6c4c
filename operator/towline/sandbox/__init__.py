"""Sandboxes: where a run's commands are executed. One Protocol (`provider.py`), an adapter a file.

Used by whoever plays the operator. The gateway never imports this: it dials an address and knows nothing of providers.
"""
