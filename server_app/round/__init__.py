"""One round: which clients are there, which train, how messages travel, how replies are checked."""
