"""Instruction records in a database: tables, queries, and transfer between stores."""
