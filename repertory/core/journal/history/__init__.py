"""What is done with the history of a journal: going back, forking, redacting, comparing, pruning."""
