"""`attach` to a rank of a running job: a shell, stacks, the debugger. Code for the login node and for compute nodes.

It may import worker, rendezvous, schedulers, runs and what is below them.

- `connect`: the user's side of `attach`: connects to a node of a run, and is its terminal or its debugger's prompt
- `requests`: requests to agents, as files of the run directory, and how an agent answers them
- `node_session`: program that is started on a rank's node: shell, relay to a debugger, server for a network client
"""
