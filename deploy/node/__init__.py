"""The edge owner's side: join a federation and keep a SuperNode running."""
