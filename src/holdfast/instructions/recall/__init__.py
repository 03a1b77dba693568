"""Recall of instruction units: boot stub, heartbeat, ranking within a budget, and the audit record."""
