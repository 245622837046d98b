"""What FedKeel is measured against: FedAvg as one would write it without FedKeel."""
