"""Example DAGs: use the stages of a launch as tasks of your own."""
