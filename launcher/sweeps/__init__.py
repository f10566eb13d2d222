"""Submits the points of sweeps as job arrays or in pilots, and changes sweeps that were submitted.

It may import submission, monitoring and what is below them.

- `prepare`: plans and checks all points of a sweep, before anything is submitted, and divides them among job arrays or
  pilots; what stands for all points of a search
- `submit`: submits a sweep: one job array where points ask for the same job, jobs of their own, pilots, or a search
- `control`: cancels, reruns and throttles the points of a submitted sweep
- `local_runner`: background process that runs points on this machine, a few at a time
"""
