"""A thin, bounded, asynchronous client of the Kubernetes API: raw dicts in and out, and errors of our family.

Called by the controller and by the gateway's token review. It decides nothing and knows no cache; watching is Kopf's.
"""
