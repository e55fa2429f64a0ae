"""What each kind of job does: one module or folder per kind. Jobs know their context, nothing of the grid."""
