"""The Flower ClientApp: local training and evaluation on one client's data."""

import os

# Idle threads would otherwise spin (with train.threads above 1) and slow the other clients down
# several times. Set here, because torch reads it when it is imported.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
