"""Options that many commands share."""

import click

db_option = click.option("--db", metavar="URL", help="Store to use instead of the configured one: a path or a URL.")
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
