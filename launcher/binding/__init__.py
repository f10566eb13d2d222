"""Decides which cores, GPU and network device each rank of a node uses, from the hardware of the node.

Plans, agents and commands use it, so of the launcher it imports only failures.codes, errors, formatting and units.

- `masks`: which CPUs and devices each rank gets, as was asked for
- `hardware`: a node's cores, accelerators, network devices (sysfs, NVIDIA's driver), and its memory
"""
