"""`attach` to a rank of a running job: a shell, stacks, the debugger. Code for the login node and for compute nodes.

It may import worker, rendezvous, schedulers, runs and what is below them.

- `connect`: the user's side of `attach`: connects to a node of a run, and is its terminal or its debugger's prompt
- `node_session`: on a rank's node: requests to its agent, and the program that is a shell, a relay or a server
"""
