"""A real two-node Kubernetes cluster on one Linux machine, for the end-to-end tests: no Docker, no registry of images.

`python -m e2e.cluster up` from the top of the repository. The control plane runs as plain processes; a node is a
network and a mount namespace with its own kubelet, containerd, kube-proxy and NetworkPolicy engine. Needs root.
Standard library only, and it imports nothing of towline.
"""
