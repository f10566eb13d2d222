"""Pilots: runs whose agents' ranks are slot managers, which take the points of a packed sweep and run them.

It may import job and what is below it.
"""
