"""Prepares the environment that ranks run in: the code snapshot, Python, packed archives, containers, secrets.

It may import runs, spec and what is below them.

- `snapshot`: copies the user's code into the run directory (env.snapshot), and maps paths into the copy
- `repository`: the files of the user's code: those of a git repository, or those that were sent from another machine
- `archives`: makes archives of environments (`env pack`), and checks env.archive at submission
- `unpack_on_node`: unpacks the archive on a node's own disk, shares it among processes, and removes it
- `containers`: checks env.container at submission; the job script's commands and srun options for it
- `container_command`: starts the container on a node: mounts, variables, runtimes
- `programs`: checks the user's script, module or function, its environment and trackers at submission
- `secrets`: secrets of a run: files of their values, and records without them
"""
