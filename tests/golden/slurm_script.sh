#!/bin/sh
#SBATCH --job-name=gridmill-0a1b2c3d-trainers-3
#SBATCH --comment='Gridmill deployment trainers-3'
#SBATCH --output=/shared/gridmill/0a1b2c3d/deployments/trainers-3/log
#SBATCH --open-mode=append
#SBATCH --chdir=/shared/gridmill/0a1b2c3d
#SBATCH --ntasks=2
#SBATCH --cpus-per-task=4
#SBATCH --mem-per-cpu=4551M
#SBATCH --gpus-per-task=a100:2
#SBATCH --partition=gpu
#SBATCH --account=physics
#SBATCH --qos=high
#SBATCH --time=2160
#SBATCH --no-requeue
#SBATCH --exclude=n7
#SBATCH '--constraint=fast disk'
# One task for each pod; a pod that ends early does not end the others.
exec srun --ntasks=2 --cpus-per-task=4 --kill-on-bad-exit=0 --wait=0 sh /shared/gridmill/0a1b2c3d/deployments/trainers-3/pod.sh
