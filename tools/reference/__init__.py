"""The reference pages, and two pictures, written from the code that they describe.

``python -m tools.reference`` writes docs/reference/ and docs/pictures/{code-map,ledger}.svg anew; with
``--check`` it says
which are out of date. :mod:`tools.reference.pages` lists them; each other module makes one, from the code as
it is imported or, for what needs Airflow, as griffe reads it without importing it.
"""
