"""The code of each kind of job: one module or package per kind. This code uses a job's context and never the
grid."""
