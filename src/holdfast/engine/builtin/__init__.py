"""Tools that come with Holdfast: files of a workspace, commands in it, and what is remembered."""
