"""Submits the points of sweeps as job arrays or in pilots, and changes sweeps that were submitted.

It may import submission, monitoring and what is below them.

- `prepare`: plans and checks all points of a sweep, before anything is written or submitted
- `grouping`: decides which points share a job array, and how sweep.parallelism is divided among arrays
- `submit`: submits points as job arrays, each point once; completes an interrupted submission
- `pilots`: pilots of a packed sweep: their number and plan, submission, cancelling and throttling
- `searches`: prepares and submits a search: checks, settings, template, first point and pilots
- `control`: cancels, reruns and throttles the points of a submitted sweep
- `local_points`: background process that runs points on this machine, a few at a time
"""
