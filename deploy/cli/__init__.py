"""The fedkeel command line."""
