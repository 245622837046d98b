"""A Flower app like the one of Flower's PyTorch quickstart, with stock FedAvg."""
