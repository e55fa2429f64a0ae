#!/bin/sh
#SBATCH --job-name=gridmill-0a1b2c3d-trainers-3
#SBATCH --comment='Gridmill deployment trainers-3'
#SBATCH --output=/shared/gridmill/0a1b2c3d/deployments/trainers-3/log
#SBATCH --open-mode=append
#SBATCH --chdir=/shared/gridmill/0a1b2c3d
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=1
#SBATCH --mem-per-cpu=1137M
#SBATCH --no-requeue
# One task for each pod; a pod that ends early does not end the others.
exec srun --ntasks=1 --cpus-per-task=1 --kill-on-bad-exit=0 --wait=0 sh /shared/gridmill/0a1b2c3d/deployments/trainers-3/pod.sh
