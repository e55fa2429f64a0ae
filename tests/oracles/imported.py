"""What a load imports when it is needed: imported before, so that a process forked from here has it."""

import deltalake
import duckdb
import psycopg
import pyarrow.compute
import pyarrow.dataset
import pyarrow.parquet
import pymysql
import redis
import sqlalchemy.dialects.mysql
import sqlalchemy.dialects.postgresql
import sqlalchemy.dialects.sqlite

import gridmill.jobs.sink.redis_stream
import gridmill.jobs.sink.sql

__all__ = ["deltalake", "duckdb", "gridmill", "psycopg", "pyarrow", "pymysql", "redis", "sqlalchemy"]
