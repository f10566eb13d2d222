"""Pilots: jobs that run the points of a packed sweep. On each node, the pilot's only rank is a slot manager.

A point is one combination of the sweep's overrides, and a run of its own. A slot is a share of a node, for one point at
a time. Slot managers share the points by claims on the file system (launcher/runs/point_claims.py).

It may import job and what is below it.

- `manager`: a slot manager: which points are free; claims, starts, stops and reaps them; what becomes of each
- `point_fork`: runs a point in a slot of a node: a fork of the slot manager, which is the point's agent
"""
