"""Makes the plan of a run from its config: one frozen object, which is submitted.

All but `workload_hook` and `data_sets` is pure. It may import config.schema, errors, paths and units.

- `plan`: the JobPlan, and its computation from a config where a value depends on several keys
- `sections`: the sections of the plan (a new key needs a field here), and the conversion of single values
- `limits`: checks a plan against the limits in the profile (cluster.limits)
- `pools`: merges the settings of a partition, queue or QOS (cluster.pools) into the cluster's
- `cost`: node-hours, GPU-hours and core-hours of a submission, and the lines that show them
- `arguments`: the command-line arguments of the user's program (workload.args, flags)
- `containers`: checks that the keys about containers can be used together
- `tracking`: checks and resolves the keys about experiment trackers
- `workload_hook`: the interface of workloads' hooks; loads a hook, and converts its errors
- `data_sets`: finds the data sets that the hooks of all workloads list
"""
