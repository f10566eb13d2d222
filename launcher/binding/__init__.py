"""Decides which cores, GPU and network device each rank of a node uses, from the hardware of the node.

`sysfs` reads the hardware; all else is pure. Of the launcher it imports only failures.codes, errors, formatting and
units: plans (`launch.bind`), agents and commands use it.
"""
