"""The store over SQLite and in memory."""
