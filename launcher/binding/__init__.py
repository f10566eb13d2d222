"""Decides which cores, GPU and network device each rank of a node uses, from the hardware of the node.

`sysfs` reads the hardware; all else is pure. Of the launcher it imports only failures.codes, errors, formatting and
units: plans (`launch.bind`), agents and commands use it.

- `wanted`: parsing of `launch.bind`
- `masks`: which CPUs each rank may use; refusals
- `devices`: which accelerator and which network device each rank uses
- `node`: the hardware of a node, as types: cores, accelerators, network devices
- `sysfs`: reads that hardware from files of the kernel and of drivers
- `nvidia`: questions to NVIDIA's management library: the GPU of a MIG slice
- `node_types`: types of nodes with a public layout, from files in nodes/; their format
"""
