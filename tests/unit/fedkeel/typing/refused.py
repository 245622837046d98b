"""A user's program with one error of type per marked line."""

import fedkeel
from fedkeel import FedAvg, FedPCD

FedPCD(tua=0.02)  # error: Unexpected keyword argument "tua" for "FedPCD"
FedPCD(tau="x")  # error: Argument "tau" to "FedPCD" has incompatible type "str"
FedPCD(0.02)  # error: Too many positional arguments for "FedPCD"
FedAvg(tau=0.02)  # error: Unexpected keyword argument "tau" for "FedAvg"
FedAvg(fraction_train="all")  # error: Argument "fraction_train" to "FedAvg" has incompatible
fedkeel.run("fedpcd", engine="inlin")  # error: Argument "engine" to "run" has incompatible type
fedkeel.run("fedpcd", rounds=3)  # error: Unexpected keyword argument "rounds" for "run"
accuracy: float = fedkeel.run("fedavg").rounds[0].mean  # error: Incompatible types in assignment
fedkeel.FedPDC()  # error: Module has no attribute "FedPDC"
