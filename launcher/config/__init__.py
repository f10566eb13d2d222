"""The schema of the configuration, and the composition of a run's config from overrides by Hydra.

Only this package, `cli` and `hydra_plugins` use Hydra. `schema` and `keys` import no third-party package, so that help
and completion start fast. It may import failures, files and what is below them. What it needs from other packages (the
number of nodes of an allocation) is passed as an argument.

- `schema`: the config keys, with type, default and meaning (keys of one scheduler: schedulers/NAME/settings.py)
- `keys`: lists all keys with type, default and meaning, for help, completion and near matches
- `compose`: composes the config of one run from its overrides; what is registered with Hydra (the schema, the resolvers
  (`${launcher.runs_dir:}`), how YAML is read)
- `compose_points`: composes the configs of a sweep's points, most of them without Hydra; parses `lr=interval(...)`
- `errors`: the error texts for overrides, options and files that Hydra refuses
- `overrides`: what is done to overrides as users type them, before Hydra parses them; quotes values for its syntax
- `profiles`: finds and saves profiles of clusters, ours and the user's
- `scheduler_table`: the table of schedulers, which names their classes and settings; entry points of other packages
- `search_space`: the search methods, and the dimensions of a search: bounds, step, choices
"""
