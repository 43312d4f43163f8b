"""What runs of several agents are decided by: shapes, frontiers, records, results and what each node is told."""
