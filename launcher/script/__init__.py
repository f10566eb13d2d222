"""Renders the script of a job from its plan: quoting, our templates, and templates of the user.

It may import spec and what is below it.
"""
