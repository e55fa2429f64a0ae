"""Dataset jobs compile features and labels to one query whose values are correct at the time of each row
(point-in-time)."""
