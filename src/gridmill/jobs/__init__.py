"""The code of each kind of job, a module or package per kind. Jobs know their context, not the grid."""
