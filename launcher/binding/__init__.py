"""Decides which cores, GPU and network device each rank of a node uses, from the hardware of the node.

`hardware` reads files and asks a library; `masks` is pure. Plans (`launch.bind`), agents and
commands use it, so of the launcher it imports only failures.codes, errors, formatting and units.

- `masks`: which CPUs and devices each rank gets, as was asked for
- `hardware`: a node's cores, accelerators, network devices (sysfs, NVIDIA's driver, a profile), and its memory
"""
