WITH basis AS (
    SELECT "origin", "time", "temp", "wind",
        "time"::TIMESTAMP AS "__time",
        row_number() OVER (PARTITION BY "origin" ORDER BY "time", "temp", "wind") AS "__row",
        rank() OVER (PARTITION BY "origin" ORDER BY "time") AS "__rank"
    FROM "hourly"
    WHERE "time" IS NOT NULL AND "origin" IS NOT NULL
),
past AS (
    SELECT *,
        avg("temp") OVER (PARTITION BY "origin" ORDER BY "__time" RANGE BETWEEN INTERVAL '86400 seconds' PRECEDING AND INTERVAL '1 microseconds' PRECEDING) AS "temp_mean_1d",
        arg_max("temp", "__row") OVER (PARTITION BY "origin" ORDER BY "__time" RANGE BETWEEN INTERVAL '86400 seconds' PRECEDING AND INTERVAL '1 microseconds' PRECEDING) AS "temp_last_1d",
        count("wind") OVER (PARTITION BY "origin" ORDER BY "__row" ROWS BETWEEN (24 + "__row" - "__rank") PRECEDING AND (1 + "__row" - "__rank") PRECEDING) AS "wind_count_24rows",
        lag("temp", 1 + "__row" - "__rank") OVER (PARTITION BY "origin" ORDER BY "__row") AS "temp_lag_1",
        lag("temp", 24 + "__row" - "__rank") OVER (PARTITION BY "origin" ORDER BY "__row") AS "temp_lag_24",
        arg_max("temp", "__row") OVER (PARTITION BY "origin" ORDER BY "__time" RANGE BETWEEN INTERVAL '21600 seconds' FOLLOWING AND INTERVAL '21600 seconds' FOLLOWING) AS "ahead",
        "__time" + INTERVAL '21600 seconds' AS "__label_time"
    FROM basis
),
joined AS (
    SELECT past.*,
        j1."alt" AS "alt",
        CASE WHEN a1."__known" >= past."__time" - INTERVAL '172800 seconds' THEN a1."rain" END AS "day_rain"
    FROM past
    LEFT JOIN "airports" AS j1 ON past."origin" = j1."origin"
    ASOF LEFT JOIN (
    SELECT "origin", "rain", "__known"
    FROM (SELECT *, (day + INTERVAL 1 DAY -- the next midnight
)::TIMESTAMP AS "__known" FROM "weather/daily")
    WHERE "__known" IS NOT NULL
    QUALIFY row_number() OVER (PARTITION BY "origin", "__known" ORDER BY "rain" DESC) = 1
) AS a1 ON past."origin" = a1."origin" AND past."__time" > a1."__known"
),
featured AS (
    SELECT *,
        (temp - wind / 2) AS "feels"
    FROM joined
)
SELECT "origin", "time", "temp", "alt", "day_rain", "temp_mean_1d", "temp_last_1d", "wind_count_24rows", "temp_lag_1", "temp_lag_24", "feels", "ahead",
    CASE WHEN "__time" >= TIMESTAMP '2013-11-15 00:00:00' THEN 'test' WHEN "__time" >= TIMESTAMP '2013-10-01 00:00:00' THEN 'validation' ELSE 'train' END AS "split",
    CASE WHEN "ahead" IS NULL OR isnan("ahead") THEN 'no label' WHEN "__time" < TIMESTAMP '2013-10-01 00:00:00' AND "__label_time" >= TIMESTAMP '2013-10-01 00:00:00' THEN 'label reaches into the next split' WHEN "__time" < TIMESTAMP '2013-11-15 00:00:00' AND "__label_time" >= TIMESTAMP '2013-11-15 00:00:00' THEN 'label reaches into the next split' END AS "__dropped"
FROM featured
ORDER BY "origin", "__time", "__row"
