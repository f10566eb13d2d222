"""Decides which cores, GPU and network device each rank of a node uses, from the hardware of the node.

`hardware` reads files and asks a library; `masks` is pure. Plans (`launch.bind`), agents and
commands use it, so of the launcher it imports only failures.codes, errors, formatting and units.

- `masks`: which CPUs and devices each rank gets, as was asked for
- `node_memory`: the memory of a node: limit, use and what is free; how often the kernel killed for lack of it
- `hardware`: the cores, accelerators and network devices of a node: from sysfs, NVIDIA's driver, or a profile
"""
