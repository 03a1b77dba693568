"""What is out of order in a tree: functions from its root to a list of offenders, a line each."""
