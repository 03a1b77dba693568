"""The tests, one folder per package of src/holdfast; shared code is in tests/support."""
