"""Atomic files, file locks, and text from other machines made safe to print."""
