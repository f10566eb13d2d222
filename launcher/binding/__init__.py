"""Which cores, GPU and network device each rank of a node gets: a node's description, and masks that follow from it.

`sysfs` reads the description; all else is pure. It imports nothing of the launcher but errors and formatting, so that
plans (`launch.bind`), agents and commands can use it.
"""
