"""Decides which cores, GPU and network device each rank of a node uses, from the hardware of the node.

`sysfs` reads the node's files and `nvidia` queries a library; the rest is pure. Plans (`launch.bind`), agents and
commands use it, so of the launcher it imports only failures.codes, errors, formatting and units.

- `wanted`: parses `launch.bind`
- `masks`: decides which CPUs each rank may use; refuses `launch.bind=map:LIST` if it does not fit
- `devices`: decides which accelerator and which network device each rank uses
- `node`: dataclasses for the hardware of a node: cores, accelerators, network devices
- `sysfs`: reads this hardware from files of the kernel and of drivers
- `nvidia`: queries NVIDIA's management library for the GPU of a MIG slice
- `node_types`: loads the hardware of known node types from files in nodes/; the format of these files
"""
