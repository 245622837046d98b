"""Atomic files, file locks, and untrusted text made safe to print."""
