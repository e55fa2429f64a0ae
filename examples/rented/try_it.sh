#!/bin/sh
# Rents a machine for one job, from the plan to the bill, without an account: a simulated EC2 on this machine.
# The rented machine is a host in Linux namespaces with an SSH server. Needs root, iproute2, sshd and `.[aws]`.
# sh examples/rented/try_it.sh [FOLDER]
set -eu
[ "$(id -u)" = 0 ] || { echo "This script needs root, because it creates network namespaces." >&2; exit 1; }
example=$(dirname "$0")
python=$(dirname "$(readlink -f "$(command -v gridmill)")")/python
folder=${1:-$(mktemp -d)}
mkdir -p "$folder"
export GRIDMILL_HOME="$folder/home"

# The provider: it prints its address and the keys of the account.
"$python" -m gridmill.testing.cloud.ec2 --machines namespaces > "$folder/account" 2> "$folder/log" &
provider=$!
end() {
    gridmill down --all > "$folder/down" 2>&1 || cat "$folder/down" >&2
    kill $provider 2> /dev/null || true
    wait $provider || true
    [ -n "${1:-}" ] || rm -rf "$folder"
}
trap 'end "${1:-}"' EXIT
trap 'exit 1' INT TERM
until [ -s "$folder/account" ]; do
    kill -0 $provider 2> /dev/null || { cat "$folder/log" >&2; exit 1; }
    sleep 0.2
done
account() { "$python" -c 'import json, sys; print(json.load(open(sys.argv[1]))[sys.argv[2]])' "$folder/account" "$1"; }
url=$(account endpoint_url)
show() { printf '\n$ %s\n' "$*"; "$@"; }

# The account. With a real account, no `--set` is needed.
account secret_key | gridmill add secret aws-key --file -
show gridmill add cloudprovider aws --region us-east-1 --access-key-id "$(account access_key)" --secret aws-key \
    --set "endpoint_url=$url" --set "python=$python"
show gridmill configure resource burst --type training --cpus 1 --memory 1GiB --at aws \
    --max-price 0.05 --max-hours 1 --keep 0s

# The rental.
show gridmill plan "$example/pipeline.yaml"
show gridmill run "$example/pipeline.yaml"
show gridmill list leases
show gridmill costs --by job

# A plan after the first rental has measured times and rates, and so the expected cost.
show gridmill plan "$example/pipeline.yaml" --set longest=28

# What the provider says.
show "$python" "$example/bill.py" "$url"
AWS_ACCESS_KEY_ID=$(account access_key) AWS_SECRET_ACCESS_KEY=$(account secret_key)
export AWS_ACCESS_KEY_ID AWS_SECRET_ACCESS_KEY
show gridmill reap aws --set regions=us-east-1 --set "endpoint_url=$url" --all
