"""Launches, from the freeze on, and the periods without one."""
