"""Where a run happens: in this process, or in Flower's simulation engine."""
