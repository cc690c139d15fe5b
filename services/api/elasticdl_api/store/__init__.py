"""The store of the api: jobs and all that is durable about them, in Postgres."""
