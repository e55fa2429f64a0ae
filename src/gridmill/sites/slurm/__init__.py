"""The Slurm site: each deployment is one batch job of Slurm, and its pods are the tasks of one srun."""
