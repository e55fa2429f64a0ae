# Greets $1 as often as $TIMES says.
i=0
while [ "$i" -lt "$TIMES" ]; do
    echo "$GREETING, $1!"
    i=$((i + 1))
done
