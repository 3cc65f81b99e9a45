"""Pipelines with the packages of others: each has a test file and a list of what it needs, `NAME.txt`.

A test is skipped where its packages are missing. `.ci/run` gives each pipeline an environment of its own.
"""
