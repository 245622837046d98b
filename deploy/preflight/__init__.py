"""Checks before work starts: this machine, the server, the data, one training step."""
