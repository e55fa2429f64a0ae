-- computed beside the query, of rows known before (labels: of later ones):
--   temp_mean_1d: mean of temp over the last 86400 s
--   temp_last_1d: last of temp over the last 86400 s
--   wind_count_24rows: count of wind over the last 24 rows
--   temp_lag_1: temp 1 rows before
--   temp_lag_24: temp 24 rows before
--   ahead: temp 21600 s later
--   day_rain: the newest rain of the last 172800 s, of weather/daily, known at day + INTERVAL 1 DAY -- the next midnight
-- the rows of __chunk, in the order of origin, time:
    SELECT "origin", "time", "temp", "wind",
        "time"::TIMESTAMP AS "__time"
    FROM "hourly"
    WHERE "time" IS NOT NULL AND "origin" IS NOT NULL;
-- and the query over them:
WITH labelled AS (
    SELECT *,
        "__time" + INTERVAL '21600 seconds' AS "__label_time"
    FROM "__chunk"
),
joined AS (
    SELECT labelled.*,
        j1."alt" AS "alt"
    FROM labelled
    LEFT JOIN "airports" AS j1 ON labelled."origin" = j1."origin"
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
ORDER BY "__at"
