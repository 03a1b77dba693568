"""Replays recorded conversations to compute what they would have cost under other plans."""
