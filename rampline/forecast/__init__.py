"""What set-ups that were never run would take, from short readings of what is at hand."""
