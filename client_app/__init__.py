"""The Flower ClientApp: local training and evaluation on one client's data."""

import os

# With train.threads above 1, threads that have nothing to do would spin and take the cores from
# other clients, which then take several times as long. Read when torch is loaded, so said here.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
