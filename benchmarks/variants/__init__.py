"""What is measured against one another: each runs in a process of its own and ends with a JSON object of figures."""
