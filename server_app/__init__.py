"""The Flower ServerApp and the Strategy subclasses."""
