#!/bin/sh
# Ends this machine when nobody needs it any more: after DEAD_MAN seconds without contact to the control node and
# without a running job whose result can be exported, and when it has run for CAP seconds. Times come from
# /proc/uptime, because the wall clock may jump. Settings are read again in each round, and the state is in
# RUN/state. Only the command END can end the machine.
umask 077
dir=${GRIDMILL_WATCH:-/var/lib/gridmill/watch}
. "$dir/settings"
RUN=${RUN:-/run/gridmill}
mkdir -p "$RUN"

uptime() { read -r up _ < /proc/uptime; echo "${up%%.*}"; }
number() { case $1 in '' | *[!0-9]*) echo "$2" ;; *) echo "$1" ;; esac; }
store() { echo "$2" > "$1.new" && mv -f "$1.new" "$1"; }

fresh() {  # whether the farm has changed the file $1 during the last STALE seconds, by /proc/uptime
    stamp=$(stat -c '%y %i' "$1" 2>/dev/null) || return 1
    seen_at=$RUN/${1##*/}.stamp
    known=$(cat "$seen_at" 2>/dev/null)
    if [ "${known#* }" != "$stamp" ]; then
        known="$now $stamp"
        store "$seen_at" "$known"
    fi
    [ $((now - $(number "${known%% *}" "$now"))) -lt "${STALE:-120}" ]
}

lives() {  # whether a process holds the lock of the pod $1
    [ -e "$1/lock" ] && grep -q "FLOCK .*:$(stat -c %i "$1/lock") " /proc/locks || return 1
    command -v flock > /dev/null || return 0
    # a file of another disk may have the same number: if nobody has this lock, it can be shared for a moment
    ! flock -n -s "$1/lock" true
}

busy() {  # whether an attempt runs whose result can be exported, in a pod that is alive and so holds its lock
    # the farm writes the ids of these attempts, and changes the time of the file every 20 s
    fresh "$FARM/farm/exportable" || return 1
    for order in "$FARM"/farm/tenants/*/home/attempts/*/order.json; do
        [ -e "$order" ] || continue
        home=${order%/attempts/*}
        attempt=${order%/order.json}
        attempt=${attempt##*/}
        grep -qsxF -e "$attempt" "$FARM/farm/exportable" || continue
        for pod in "$home"/pods/*; do
            # the files of an ended attempt stay until the control node has confirmed its end
            grep -qs "^$attempt " "$pod/attempts" && lives "$pod" &&
                ! grep -qs "\"attempt_id\":\"$attempt\",.*\"type\":\"ended\"" "$pod"/journal/* && return 0
        done
    done
    return 1
}

exporting() {  # whether the farm uploads a result to a bucket, which it shows in this file every 20 s
    fresh "$FARM/farm/exporting"
}

ending() {  # shows the farm why the machine will end soon, so that it uploads results and checkpoints
    why=
    if [ -s "$RUN/notice" ]; then why="the provider ends the machine"; fi
    if [ "$used" -ge $((CAP - MARGIN)) ]; then why="the machine reaches its longest time"; fi
    if [ -z "$why" ]; then rm -f "$FARM/farm/ending"; return; fi
    if [ -d "$FARM/farm" ] && [ ! -e "$FARM/farm/ending" ]; then store "$FARM/farm/ending" "$why"; fi
}

finish() {  # repeated in each round, because a shutdown may hang
    [ -e "$dir/reason" ] || store "$dir/reason" "$1"
    echo "gridmill: this machine ends itself: $1" >&2
    rounds=$((rounds + 1))
    store "$RUN/rounds" "$rounds"
    # not as an argument, because every process can read the arguments of others, and END may have a credential
    printf '%s\n' "$END" | ROUND=$rounds sh
}

now=$(uptime)
# a watcher that was killed and started again in the same boot must not give the machine more time
before=$(number "$(cat "$RUN/before" 2>/dev/null)" "$now")
last=$(number "$(cat "$RUN/last" 2>/dev/null)" "$now")
used=$(number "$(cat "$dir/used" 2>/dev/null)" 0)
seen=$(cat "$RUN/seen" 2>/dev/null)
rounds=$(number "$(cat "$RUN/rounds" 2>/dev/null)" 0)
while :; do
    . "$dir/settings"
    now=$(uptime)
    used=$((used + now - before)) before=$now
    mark=$(cat "$RUN/contact" 2>/dev/null)
    working=0
    if busy || exporting; then working=1; fi
    if [ "$mark" != "$seen" ] || [ $working = 1 ]; then last=$now seen=$mark; fi
    silent=$((now - last))
    store "$dir/used" "$used"
    store "$RUN/before" "$before"
    store "$RUN/last" "$last"
    store "$RUN/seen" "$seen"
    if [ -n "$NOTICE" ] && [ ! -s "$RUN/notice" ]; then
        text=$(sh -c "$NOTICE" 2>/dev/null | head -c 500 | tr '\n' ' ')
        if [ -n "$text" ]; then store "$RUN/notice" "$text"; fi
    fi
    ending
    store "$RUN/state" "used=$used silent=$silent working=$working"
    if [ "$used" -ge "$CAP" ]; then
        finish "it has run for $used s, the longest time for which it may be rented"
    elif [ "$silent" -ge "$DEAD_MAN" ]; then
        finish "for $silent s it had no contact to the control node and no running job whose result it can export"
    fi
    sleep "$STEP"
done
