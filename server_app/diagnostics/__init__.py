"""Optional measurements of a round. They never change a result."""
