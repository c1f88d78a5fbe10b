"""Sendoff's pages inside Airflow's UI: what was sent to whom and why not, and what waits for a person.

Read :mod:`~sendoff_airflow.views.app`, which puts them together; :mod:`~sendoff_airflow.views.permissions`,
who may see and who may steer; :mod:`~sendoff_airflow.views.launches`, :mod:`~sendoff_airflow.views.launch`,
:mod:`~sendoff_airflow.views.waiting`, :mod:`~sendoff_airflow.views.campaigns` and
:mod:`~sendoff_airflow.views.people`, what is seen; :mod:`~sendoff_airflow.views.actions` with
:mod:`~sendoff_airflow.views.request_models`, what is decided. They are given the ledger by
:mod:`~sendoff_airflow.views.dependencies`, and take their pages of lists from
:mod:`~sendoff_airflow.views.paging`, what a
launch waits for from :mod:`~sendoff_airflow.views.held` and :mod:`~sendoff_airflow.views.brakes`, sums from
:mod:`~sendoff_airflow.views.flow`, charts from :mod:`~sendoff_airflow.views.charts`, what comes next from
:mod:`~sendoff_airflow.views.next_launch`, and what Airflow itself knows from
:mod:`~sendoff_airflow.views.airflow_db`. Every
handler is an ordinary function, which the server runs in a thread: neither the ledger nor Matplotlib holds up what
else the server answers. Every route but those of static files asks who is there; none is anonymous.
"""
