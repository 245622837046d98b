"""Sweeps: many runs from one plan, each a process of its own."""
