"""Pilots: runs whose agents' ranks are slot managers, which take the points of a packed sweep and run them.

It may import job and what is below it.

- `manager`: the slot manager of a pilot: takes points, starts, watches and ends them
- `point_fork`: runs one point in a fork: its attempt, environment, output, end
- `slots`: how the slots of a node share its CPUs and GPUs
- `board`: which points are free, and whose slot managers are dead
- `outcome`: what becomes of a point after its process has ended
- `group`: which nodes run points together
- `follower`: the slot manager of another node of a group
- `parts`: what the first node of a group knows of the parts on the others
- `journal_writer`: the journal and the heartbeats of a slot manager; its wait for events
- `journal_reader`: the journal of another slot manager, and whether that is alive
"""
