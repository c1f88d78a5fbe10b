"""One module for each database that is read as Arrow: how to connect, run a query, interrupt it, and log in."""
