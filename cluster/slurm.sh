#!/usr/bin/env bash
# Slurm: one Ray cluster over the nodes of this job; it ends with the job.
#   sbatch --nodes 4 cluster/slurm.sh --recipe base --name first
#SBATCH --job-name=parc-ray
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --exclusive
#SBATCH --gpus-per-node=1
#SBATCH --time=24:00:00
#SBATCH --signal=B:TERM@120
#SBATCH --output=parc-ray-%j.log
set -euo pipefail

# Yours to set: the environment that holds the package, and a directory that all nodes mount.
PARC_ENV="${PARC_ENV:-$HOME/parc_env}"
export PARC_STORAGE="${PARC_STORAGE:-$HOME/parc_runs}"
PARC_HOME="${PARC_HOME:-$SLURM_SUBMIT_DIR}"

export PATH="$PARC_ENV/bin:$PATH"
export RAY_AUTH_MODE=token RAY_USAGE_STATS_ENABLED=0
mkdir -p "$PARC_STORAGE"
[[ -f "$HOME/.ray/auth_token" ]] || ray get-auth-token --generate >/dev/null

# Ports of our own, so that two jobs on one node do not meet.
port=$((20000 + SLURM_JOB_ID % 20000))
mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
head="${nodes[0]}"
address=$(srun --overlap --nodes=1 --ntasks=1 -w "$head" hostname --ip-address)
address="${address%% *}:$port"
cpus="${SLURM_CPUS_ON_NODE:-1}"
gpus="${SLURM_GPUS_ON_NODE:-0}"

start() { # node, options of `ray start`
  local node="$1"
  shift
  srun --overlap --nodes=1 --ntasks=1 -w "$node" \
    ray start "$@" --num-cpus="$cpus" --num-gpus="$gpus" --resources='{"sim": 1}' --block &
}

start "$head" --head --port="$port" --dashboard-host=127.0.0.1
for node in "${nodes[@]:1}"; do
  start "$node" --address="$address"
done

export RAY_ADDRESS="$address"
for ((tries = 60; tries > 0; tries--)); do
  if srun --overlap --nodes=1 --ntasks=1 -w "$head" ray status --address="$address" >/dev/null 2>&1; then
    break
  fi
  sleep 5
done
((tries > 0)) || { echo "no Ray head at $address after 5 minutes" >&2; exit 1; }

# The steps above end with the job. The driver runs beside the head and is told of the end, so that
# `sbatch` with the same words goes on from the last finished part.
srun --overlap --nodes=1 --ntasks=1 -w "$head" python "$PARC_HOME/run_parc.py" "$@" &
driver=$!
trap 'kill -TERM "$driver" 2>/dev/null || true' TERM
code=0
wait "$driver" || code=$?
# A signal ends `wait` and not the driver, which still has to let go of the run.
while kill -0 "$driver" 2>/dev/null; do
  code=0
  wait "$driver" || code=$?
done
exit "$code"
