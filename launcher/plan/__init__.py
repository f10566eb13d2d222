"""Makes the plan of a run from its config: one frozen object, which is submitted.

All but `workload_hook`, `limits.crowded` and `limits.check_gpus` is pure. It may import config and what is below it.

- `plan`: the JobPlan and its sections (a key that the job needs is a field there); its JSON form, checked when read
- `build`: makes the plan from a whole config: converts values, validates them one by one and against each other
- `limits`: limits that a profile or the user sets: nodes, time, cost and jobs; pools of nodes
- `workload_hook`: what a workload adds to the checks before a submission, and the data sets that workloads name
"""
