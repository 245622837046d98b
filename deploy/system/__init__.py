"""Processes, signals and private files."""
