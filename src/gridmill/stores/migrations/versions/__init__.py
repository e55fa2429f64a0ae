"""The steps of the database migrations. After its release, a migration step is never changed."""
