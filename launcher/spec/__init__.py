"""Makes the plan of a run from its config: one frozen object, which is submitted.

All but `workload_hook` and `data_sets` is pure. It may import config.schema, errors, paths and units.

- `plan`: the JobPlan, and how it is made of a config: values that depend on several keys
- `sections`: its sections; values of the config as values of the plan
- `limits`: a plan against the limits of the profile
- `pools`: settings of a partition, queue or QOS, applied to a job that uses it
- `cost`: node-hours, GPU-hours, core-hours
- `arguments`: arguments and file of the user's program
- `containers`: checks of the keys about containers
- `tracking`: checks of the keys about trackers
- `workload_hook`: the hook of a workload: its interface, loading, errors
- `data_sets`: data sets of all workloads, ours and the user's; which one a name means
"""
