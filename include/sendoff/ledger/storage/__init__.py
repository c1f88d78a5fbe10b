"""The tables, the database, and how sets are stored in it."""
