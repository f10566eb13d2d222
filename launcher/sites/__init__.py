"""Profiles of sites: which there are, and one that is written from what a scheduler tells of itself."""
