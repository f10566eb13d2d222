"""Makes the plan of a run from its config: one frozen object, which is submitted.

All but `workload_hook` is pure. It may import config.schema, errors, paths and units.

- `plan`: the JobPlan: what a run's plan contains besides its sections; its JSON form, and the check of JSON read back
- `build`: makes the plan from a config: values that depend on several keys, checks, the program's arguments
- `sections`: the sections of the plan (a key that the job needs is a field there); conversion of single values
- `limits`: limits that a profile or the user sets: nodes, time, cost and jobs; pools of nodes
- `workload_hook`: what a workload adds to the checks before a submission, and the data sets that workloads name
"""
