"""`holdfast chat`: an agent in the terminal."""
