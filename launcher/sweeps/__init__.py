"""Submits the points of sweeps as job arrays, and changes sweeps that were submitted.

It may import submission, monitoring and what is below them.

- `prepare`: plans and checks all points, before anything is submitted
- `grouping`: which points share an array
- `submit`: submits points as arrays, each once; continues an interrupted submission
- `pilots`: the pilots of a packed sweep: how many, their submission, throttling
- `searches`: submits a search: its settings, template, first points and pilots
- `control`: cancels, reruns and throttles points
- `local_points`: runs points on this machine, a few at a time
"""
