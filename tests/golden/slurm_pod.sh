#!/bin/sh
set -- trainers-3.0 trainers-3.1
shift "$SLURM_PROCID"
pod=/shared/gridmill/0a1b2c3d/pods/$1
[ -d "$pod" ] || { echo "$(hostname) does not see $pod" >&2; exit 3; }
[ ! -e "$pod/ended" ] && mkdir "$pod/claimed" 2>/dev/null || exit 0
export GRIDMILL_HOME=/shared/gridmill/0a1b2c3d
export TOKEN='it'"'"'s secret'
export GRIDMILL_GPUS="${CUDA_VISIBLE_DEVICES:-}"
module load cuda
trap ': > "$pod/signalled"' TERM INT
/opt/gridmill/bin/python -P -m gridmill.pod "$pod" </dev/null >>"$pod/log" 2>&1 &
child=$!
( while [ ! -e "$pod/stop" ]; do sleep 1; done
  kill -TERM "$child"; sleep 5; kill -KILL "$child" ) >/dev/null 2>&1 </dev/null &
watcher=$!
while kill -0 "$child" 2>/dev/null; do wait "$child"; code=$?; done
kill -KILL "$watcher" 2>/dev/null
trap '' TERM INT
[ -e "$pod/ended" ] || /opt/gridmill/bin/python -P -m gridmill.pod.cleanup "$pod" >>"$pod/log" 2>&1 </dev/null
exit "${code:-0}"
