"""DAGs to copy from: the stages of a launch as tasks of your own."""
