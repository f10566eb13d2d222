"""Prepares the environment that ranks run in: the code snapshot, Python, packed archives, containers, secrets.

It may import runs, spec and what is below them.

- `snapshot`: copies the user's code into the run directory (env.snapshot), and maps paths into the copy
- `interpreter`: checks the venv or conda environment of env.activate; the shell text that activates it
- `archives`: makes archives of environments (`env pack`), and checks env.archive at submission
- `unpack_on_node`: unpacks the archive on a node's own disk, shares it among processes, and removes it
- `containers`: checks env.container at submission; the job script's commands and srun options for it
- `container_command`: starts the container on a node: mounts, variables, runtimes
- `programs`: checks the user's script, module or function at submission, without executing it
- `setup_line`: the type of the shell lines that run before the agents
- `secrets`: passes the values of secret variables to jobs, on PBS in files
- `record_redaction`: removes the values of secrets from a run's record
- `trackers`: checks that the packages of a run's trackers are installed
"""
