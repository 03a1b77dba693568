"""`holdfast doctor`: finds what makes the output of a prompt-building function change between runs."""
