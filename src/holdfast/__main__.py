"""Lets `python -m holdfast` do what `holdfast` does."""

from holdfast.cli.main import main

main()
