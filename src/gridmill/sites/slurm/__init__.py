"""The Slurm site: a deployment is one batch job, its pods are the tasks of one srun."""
