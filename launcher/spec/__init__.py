"""Makes the plan of a run from its config: one frozen object, which is submitted.

All but `workload_hook` and `data_sets` is pure. It may import config.schema, errors, paths and units.

- `plan`: the JobPlan: what a run's plan contains besides its sections; its JSON form, and the check of JSON read back
- `build`: makes the plan from a config: values that depend on several keys, checks, the program's arguments
- `sections`: the sections of the plan (a key that the job needs is a field there); conversion of single values
- `limits`: checks a plan against the limits in the profile (cluster.limits); its node-, GPU- and core-hours
- `pools`: merges the settings of a partition, queue or QOS (cluster.pools) into the cluster's
- `containers`: checks that the keys about containers can be used together
- `tracking`: checks and resolves the keys about experiment trackers
- `workload_hook`: the interface of workloads' hooks; loads a hook, and converts its errors
- `data_sets`: finds the data sets that the hooks of all workloads list
"""
