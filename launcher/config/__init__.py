"""The typed schema of everything in conf/, and the composition of configs from overrides by Hydra.

schema.py and keys.py import the standard library alone, for help and completion. Only this package, `cli` and
`hydra_plugins` use Hydra. It may import failures, files and what is below them; what it needs of other packages (the
number of nodes of an allocation) is passed as an argument.

- `schema`: every key but those of one scheduler, with type, default and meaning
- `keys`: every setting with type and default, as one would write it; for help and completion
- `compose`: overrides -> the config of one run, through Hydra
- `points`: overrides -> the configs of many points, most of them without Hydra
- `hydra_setup`: what is registered with Hydra before it composes: our schema, resolvers, reading of YAML
- `hydra_errors`: Hydra's errors about overrides in our words
- `profile_errors`: Hydra's errors about configuration files in our words
- `hydra_text`: values as text of overrides, quoted for Hydra
- `profiles`: profiles of clusters, ours and the user's: finding, saving
- `scheduler_table`: names of schedulers, and where their classes and keys are; entry points
- `search_space`: the dimensions of a search: type, bounds, step; a chosen value, rounded and as an override
- `space_overrides`: the syntax of `lr=interval(...)`, `choice(...)` for these
- `secret_references`: refuses `${oc.env:...}` of a secret
"""
