"""Computing on a Ray cluster: shards of a job go to workers on its machines, answers come back to one journal."""
