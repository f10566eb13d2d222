"""Prepares the environment that ranks run in: the code snapshot, Python, packed archives, containers, secrets.

It may import runs, spec and what is below them.

- `snapshot`: the copy of the user's code in the run directory
- `interpreter`: checks of the Python of `env.activate`; the shell text that activates it
- `archives`: `env pack`, and the check of `env.archive` at submission
- `unpack_on_node`: unpacks the archive on a node's disk, shares it, and removes it
- `containers`: checks of the container at submission; what the script calls for it
- `container_command`: starts the container on a node: mounts, variables, runtimes
- `programs`: checks of the user's program or function, without executing it
- `setup_line`: the type of the shell lines that run before the agents
- `secrets`: secret variables: how their values get to a job
- `record_redaction`: a run's record without the values of secrets
- `trackers`: whether the packages of trackers are installed
"""
