"""The Flower ClientApp: local training and evaluation on one client's data."""
