"""Pipelines with the real packages: a test file each, beside the list of what it needs.

A file is skipped where its packages are missing. The stage "pipelines" of `.ci/run` makes an environment for each list.
"""
