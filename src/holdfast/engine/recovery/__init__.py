"""Recovery from known failures in a live session: the steps, their runner, and what is reported to a person."""
