"""How FedKeel is run: the `fedkeel` command and the engines behind it."""
