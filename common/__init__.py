"""The mathematics, the models, the data and the wire format that server and client share."""
