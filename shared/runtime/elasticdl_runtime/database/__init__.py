"""Postgres, for the processes that talk to it: the api and the scheduler.

The schema is made by the api's migrations. ``engine`` holds connections and deadlines, ``tables`` the tables as
SQLAlchemy Core, ``transitions`` the only code that changes a job's state, ``snapshots`` what policies decide on.
"""
