"""The operator's side: certificates, keys, enrolled clients, the server processes, status."""
