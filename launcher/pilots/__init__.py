"""Pilots: jobs that run the points of a packed sweep. On each node, the pilot's only rank is a slot manager.

A point is one combination of the sweep's overrides, and a run of its own. A slot is a share of a node, for one point at
a time. Slot managers share the points by claims on the file system (launcher/runs/claims.py).

It may import job and what is below it.

- `manager`: the loop of a slot manager: claims points, starts, stops and reaps them
- `point_fork`: runs one point in a forked process: its attempt, environment, output and exit code
- `slots`: divides the CPUs and GPUs of a node among its slots
- `board`: finds the points that may be claimed, and the slot managers that are dead
- `journal`: writes a slot manager's journal and heartbeats; what a point's exit code means
"""
