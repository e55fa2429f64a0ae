#!/bin/sh
# A farm and a home on one machine, each in a folder of its own; of two machines the first part is for the farm's.
# sh examples/farm/try_it.sh [FOLDER [PORT]]
set -eu
example=$(cd "$(dirname "$0")" && pwd)
folder=${1:-$(mktemp -d)}
port=${2:-8711}
mkdir -p "$folder"

# At the farm: it says one line, for one home and for an hour.
GRIDMILL_HOME="$folder/farm" gridmill up --light --listen "127.0.0.1:$port" > "$folder/line" 2> "$folder/log" &
farm=$!
trap 'kill $farm 2>/dev/null; wait $farm' EXIT
until [ -s "$folder/line" ]; do
    kill -0 $farm 2>/dev/null || { cat "$folder/log" >&2; exit 1; }
    sleep 0.2
done

# At home: paste it, and run.
export GRIDMILL_HOME="$folder/home"
sh -c "$(cat "$folder/line")"
gridmill plan "$example/pipeline.yaml"
gridmill run "$example/pipeline.yaml"
gridmill show job farm/model
